// SPDX-License-Identifier: Apache-2.0
// Backends whose replicas are on GPUs, on the host's doubles of the CUDA module and of NCCL; rank r
// has device r.
#pragma once

#include <memory>
#include <string_view>

#include "common/sync/backend.h"
#include "ring/gpu_single.h"
#include "ring/nccl_synchronizer.h"
#include "tests/support/host_module.h"
#include "tests/support/seen_from_host.h"

namespace paceline::testing {

inline const CudaModule& double_module() {
  static const CudaModule module(test::host_module());
  return module;
}

template <std::unique_ptr<Synchronizer> (*make)(const WorkerContext&)>
Backend on_double(std::string_view name) {
  Backend row;
  row.name = name;
  row.traits = {Consistency::synchronous, UpdatePlace::worker, false};
  row.make = [](const WorkerContext& context) -> std::unique_ptr<Synchronizer> {
    return std::make_unique<test::SeenFromHost>(double_module(), context.rank, make(context));
  };
  return row;
}

inline Backend nccl_on_double() {
  return on_double<make_nccl_synchronizer>("nccl");
}
inline Backend single_on_double() {
  return on_double<make_gpu_single>("single");
}

}  // namespace paceline::testing
