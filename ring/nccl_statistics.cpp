// SPDX-License-Identifier: Apache-2.0
#include "ring/nccl_statistics.h"

namespace paceline {

void NcclStatistics::sum(std::span<double> values, GpuStream& stream) {
  comms_.check();
  stream.record(there_);
  stream_.wait(there_);
  monitor_.begin(std::nullopt, step_.step);
  comms_.sum_doubles(NcclCommunicators::kWorld, values, stream_);
  monitor_.end();
  stream_.record(summed_);
  stream.wait(summed_);
}

}  // namespace paceline
