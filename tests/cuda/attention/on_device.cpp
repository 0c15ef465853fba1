// The tests of flash_cuda on a device: every case, beside the CUDA backend.
#include "cases.h"
#include "facet/backend/cuda_backend.h"

namespace facet::test {

bool drawn(double) {
  return true;
}

Prepare backend_preparation() {
  const std::shared_ptr<Backend> backend = make_cuda_backend();
  return [backend](const AttentionInput& input) {
    backend->prepare_attention(input);
    backend->read_back(input.positions, sizeof(std::int32_t));  // waits
  };
}

}  // namespace facet::test
