// SPDX-License-Identifier: Apache-2.0
// One object for all workers that are threads of this process.
#pragma once

#include <cstring>
#include <memory>
#include <string>

#include "common/comm/communicator.h"

namespace paceline {

/// What rank 0's `make` makes, held by every worker. Collective.
template <typename T, typename Make>
std::shared_ptr<T> share_among_threads(Communicator& workers, Make make) {
  std::shared_ptr<T> object;
  if (workers.rank() == 0) {
    object = make();
  }
  const auto* mine = &object;
  std::string blob(sizeof(mine), '\0');
  std::memcpy(blob.data(), &mine, sizeof(mine));
  blob = workers.broadcast(0, std::move(blob));
  const std::shared_ptr<T>* root = nullptr;
  std::memcpy(&root, blob.data(), sizeof(root));
  if (workers.rank() != 0) {
    object = *root;
  }
  workers.barrier();
  return object;
}

}  // namespace paceline
