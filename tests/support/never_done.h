// SPDX-License-Identifier: Apache-2.0
// Work that holds a stream of the double up.
#pragma once

#include <memory>

#include "common/core/gpu/gpu.h"
#include "tests/support/host_stream.h"

namespace paceline::test {

/// Work that does not end on a stream of the double, until this does.
class NeverDone {
 public:
  explicit NeverDone(const GpuStream& stream) {
    static_cast<HostStream*>(stream.native())->queue([end = end_] { end->wait(); });
  }
  ~NeverDone() { end_->reach(); }
  NeverDone(const NeverDone&) = delete;
  NeverDone& operator=(const NeverDone&) = delete;

 private:
  std::shared_ptr<HostPoint> end_ = std::make_shared<HostPoint>();
};

}  // namespace paceline::test
