// SPDX-License-Identifier: Apache-2.0
// A model's buffers (running statistics) belong to its own training; what borrows them puts them
// back.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/comm/communicator.h"
#include "common/core/model.h"

namespace paceline {

/// The buffers are at its end what they were at its start.
class BufferGuard {
 public:
  explicit BufferGuard(Model& model)
      : model_(model), kept_(model.buffers().begin(), model.buffers().end()) {}
  ~BufferGuard() { std::ranges::copy(kept_, model_.buffers().begin()); }
  BufferGuard(const BufferGuard&) = delete;
  BufferGuard& operator=(const BufferGuard&) = delete;

  /// Collective: gives every rank the buffers of rank 0, as PyTorch's DistributedDataParallel does.
  void take_from_rank0(Communicator& workers) const {
    const std::span<float> buffers = model_.buffers();
    if (buffers.empty() || workers.size() == 1) {
      return;
    }
    const std::span<char> bytes(reinterpret_cast<char*>(buffers.data()), buffers.size_bytes());
    const std::string theirs = workers.broadcast(0, std::string(bytes.begin(), bytes.end()));
    if (theirs.size() != bytes.size()) {
      throw Error("rank 0's model has other running statistics than this rank's");
    }
    std::ranges::copy(theirs, bytes.begin());
  }

 private:
  Model& model_;
  std::vector<float> kept_;
};

}  // namespace paceline
