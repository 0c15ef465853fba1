// The CPU backend: host memory, host threads.
#pragma once

#include "facet/backend/backend.h"
#include "facet/plugin/host_services.h"

namespace facet {

// `services` must outlive the backend and every buffer.
std::unique_ptr<Backend> make_cpu_backend(HostServices& services);

}  // namespace facet
