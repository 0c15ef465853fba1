#include "machine_load.h"

#include <unistd.h>

#include <cstdlib>

#include "facet/base/log.h"

namespace facet::cli {

MachineLoad machine_load() {
  MachineLoad load;
  load.processors = sysconf(_SC_NPROCESSORS_ONLN);
  if (getloadavg(&load.average, 1) != 1) load.average = -1;
  return load;
}

void warn_when_busy(const MachineLoad& load, const char* consequence) {
  if (load.average <= static_cast<double>(load.processors)) return;
  log(LogLevel::warn, "the machine is busy: load average {:.2f} on {} processors before the first {}", load.average,
      load.processors, consequence);
}

void add_machine_load(Json& document, const MachineLoad& load) {
  document["load_average"] = load.average < 0 ? Json(nullptr) : Json(load.average);
  document["processors"] = load.processors;
}

}  // namespace facet::cli
