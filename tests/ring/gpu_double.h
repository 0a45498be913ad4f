// SPDX-License-Identifier: Apache-2.0
// sync=nccl on the host's doubles of the CUDA module and of NCCL; rank r has device r.
#pragma once

#include <memory>

#include "common/sync/backend.h"
#include "ring/nccl_synchronizer.h"
#include "tests/support/host_module.h"
#include "tests/support/seen_from_host.h"

namespace paceline::testing {

inline const CudaModule& double_module() {
  static const CudaModule module(test::host_module());
  return module;
}

inline Backend nccl_on_double() {
  Backend row;
  row.name = "nccl";
  row.traits = {Consistency::synchronous, UpdatePlace::worker, false};
  row.make = [](const WorkerContext& context) -> std::unique_ptr<Synchronizer> {
    return std::make_unique<test::SeenFromHost>(double_module(), context.rank,
                                                make_nccl_synchronizer(context));
  };
  return row;
}

}  // namespace paceline::testing
