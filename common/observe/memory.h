// SPDX-License-Identifier: Apache-2.0
// The memory this process has used.
#pragma once

#include <cstdint>

namespace paceline {

/// Most resident bytes of this process since its exec (VmHWM; getrusage where /proc is missing,
/// which also counts what the parent had at fork). 0 when the system does not tell.
[[nodiscard]] std::int64_t peak_rss_bytes() noexcept;

}  // namespace paceline
