// SPDX-License-Identifier: Apache-2.0
// The worked example of a backend.
#pragma once

#include "common/sync/backend.h"

namespace paceline {

[[nodiscard]] Backend my_backend();

}  // namespace paceline
