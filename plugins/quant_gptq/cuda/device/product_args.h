// What every kernel that multiplies the packed form is told of a product.
#pragma once

#include "facet/abi/linear.h"
#include "quant_gptq/cuda/rows32/layout.h"

namespace facet::linear {

// `Args` names these alike; what else it has is zero.
template <typename Args>
Args product_args(const abi::LinearProblem& problem, const Rows32& shape, const abi::LinearArgs& args) {
  Args made{};
  made.shape = shape;
  made.packed = static_cast<const unsigned char*>(args.packed);
  made.x = args.input;
  made.x_stride = args.input_stride;
  made.y = args.output;
  made.y_stride = args.output_stride;
  made.rows = static_cast<int>(args.rows);
  made.output_f32 = problem.output == abi::DType::f32 ? 1 : 0;
  made.fuse_gate = (problem.fusions & abi::kFuseGeluGate) != 0 ? 1 : 0;
  return made;
}

}  // namespace facet::linear
