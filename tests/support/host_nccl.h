// SPDX-License-Identifier: Apache-2.0
// NCCL's double: communicators between threads of one process, collectives queued on the streams of
// host_stream.h. No result of it is a GPU's.
#pragma once

#include "common/core/cuda/nccl_abi.h"

namespace paceline::test {

[[nodiscard]] cuda::NcclApi host_nccl();

}  // namespace paceline::test
