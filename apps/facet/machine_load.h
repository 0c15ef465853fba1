// How busy the machine is before something is measured.
#pragma once

#include "common.h"

namespace facet::cli {

// Runnable processes over the last minute (less than 0: the system does not say), and the processors they share.
struct MachineLoad {
  double average = -1;
  std::int64_t processors = 0;
};

MachineLoad machine_load();
// Other work takes turns with what is measured, and one repeat may take twice as long as the next for no reason of its
// own. `consequence` ends the warning.
void warn_when_busy(const MachineLoad& load, const char* consequence);
// "load_average" (null where the system does not say) and "processors".
void add_machine_load(Json& document, const MachineLoad& load);

}  // namespace facet::cli
