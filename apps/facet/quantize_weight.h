// The quantizer library joined to the framework's checkpoint types.
#pragma once

#include "facet/checkpoint/quantized_writer.h"
#include "facet/quantizer/rtn.h"
#include "gemma4/gemma4_model.h"

namespace facet::cli {

// A weight in another format, in memory: bf16 to int8 or int4 by round-to-nearest with searched scales, or back to bf16
// (rounded).
LinearWeight quantize_weight(const LinearWeight& weight, const LinearFormat& format);
// A matrix of a checkpoint as the quantizer takes it; borrows the values.
quantizer::Matrix quantizer_matrix(const DenseMatrix& matrix);
// One matrix of a checkpoint, for quantize_checkpoint(). Throws Error(checkpoint) naming the tensor for NaN and
// infinity.
QuantizedMatrix quantize_matrix(const DenseMatrix& matrix, const QuantizationScheme& scheme, bool search_scales);

}  // namespace facet::cli
