// Where the heavy work of a quantization is done: on this processor, or on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "facet/quantizer/gptq.h"

namespace facet::quantizer {

// Rows in device memory, bf16 [count, columns] without gaps, and the same rows in the original model (null without).
struct DeviceRows {
  const void* rows = nullptr;
  const void* originals = nullptr;
  std::int64_t count = 0;
  // A cudaStream_t: what is queued there writes the rows before, and may write them again after the call.
  void* stream = nullptr;
};

// The inputs of layers that read the same rows, and the layers quantized with them. For each batch of rows: rows() (and
// originals()), fill it, add(). Then factor() once, then quantize() for each matrix. Not for use by several threads.
class Calibration {
 public:
  struct Facts {
    std::int64_t rows = 0;
    std::int64_t dead_columns = 0;
    double damping = 0;  // that was used
    int failures = 0;    // factorisations that failed before it
  };

  virtual ~Calibration() = default;
  virtual std::int64_t columns() const = 0;
  // Where `count` rows [count, columns] go, without gaps; valid until the next call of add().
  virtual float* rows(std::int64_t count) = 0;
  // The same rows in the original model; only for an object that was begun with originals.
  virtual float* originals(std::int64_t count) = 0;
  // Adds the rows as Hessian::add does, with what it throws.
  virtual void add() = 0;
  // The same for rows that lie in the memory of the engine's device already. They are bf16, so products are exact and
  // only sums are rounded, in float over one call. Throws EngineError on the CPU.
  virtual void add(const DeviceRows& rows) = 0;
  // As GptqInput does, with what it throws.
  virtual void factor() = 0;
  virtual Facts facts() const = 0;
  // As quantize_gptq does, with what it throws; in the format of `options`, which agree with those of begin() in
  // everything else.
  virtual GptqResult quantize(const Matrix& matrix, const GptqOptions& options) = 0;
};

// A device that is missing or failed.
class EngineError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Engine {
 public:
  virtual ~Engine() = default;
  // "cpu", or the name of the GPU.
  virtual std::string description() const = 0;
  // Time inside matrix products and factorisations on a device of its own; 0 for the CPU, whose Blas counts.
  virtual double blas_seconds() const { return 0; }
  // Free memory of a device of its own; 0 for the CPU.
  virtual std::uint64_t free_bytes() const { return 0; }
  // Where batches of rows come from.
  enum class RowsFrom { host, device };
  // Peak bytes of device memory for inputs of `columns` columns in batches of `batch_rows`, DeviceRows themselves not
  // counted; 0 for the CPU.
  virtual std::uint64_t device_bytes(std::int64_t columns, std::int64_t batch_rows, bool with_originals,
                                     RowsFrom from) const {
    static_cast<void>(columns), static_cast<void>(batch_rows), static_cast<void>(with_originals),
        static_cast<void>(from);
    return 0;
  }
  virtual std::unique_ptr<Calibration> begin(std::int64_t columns, const GptqOptions& options, bool with_originals) = 0;
};

// Both must outlive the engine.
std::unique_ptr<Engine> make_cpu_engine(const Blas& blas, const ParallelFor& parallel);
// The GPU, through the library at `library`; groups of up to 128 inputs. Throws EngineError with the reason when there
// is no such library, or no device that it can use.
std::unique_ptr<Engine> make_cuda_engine(const std::string& library);

}  // namespace facet::quantizer
