// SPDX-License-Identifier: Apache-2.0
#include "ring/wire_overflow.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/error.h"

namespace paceline {

namespace {

constexpr std::string_view kMarksName = "marks of gradients beyond fp16";

}  // namespace

void throw_wire_overflow(int rank, BucketId b) {
  throw Error(fmt::format(
      "rank {}: the mean gradient of bucket {} is not finite in fp16, whose range ends at "
      "65504: use bf16 on the wire, lower optimizer.lr, or set precision.loss_scale=dynamic "
      "to leave such steps out",
      rank, b));
}

WireOverflow::WireOverflow(Gpu& gpu, GpuStream& stream, int rank, int buckets)
    : gpu_(gpu),
      stream_(stream),
      rank_(rank),
      marks_(gpu, static_cast<std::size_t>(buckets) * sizeof(std::int32_t), kMarksName),
      host_(marks_.size()),
      copied_(gpu) {
  pinned_.emplace(gpu, std::span(host_.data(), host_.size()));
  gpu_.check(gpu_.api().fill(marks_.as(), 0, marks_.size(), stream_.native()), kMarksName);
}

WireOverflow::~WireOverflow() {
  if (!stream_.drain()) {
    gpu_.keep(std::move(host_));
  }
}

void WireOverflow::send() {
  if (under_way_) {
    return;
  }
  gpu_.check(gpu_.api().copy_to_host(host_.data(), marks_.as(), marks_.size(), stream_.native()),
             kMarksName);
  stream_.record(copied_);
  under_way_ = true;
}

void WireOverflow::check() {
  if (!under_way_ || !copied_.reached()) {
    return;
  }
  under_way_ = false;
  const std::span<const std::int32_t> marks = host_.as<std::int32_t>();
  if (const auto found = std::ranges::find_if(marks, [](std::int32_t mark) { return mark != 0; });
      found != marks.end()) {
    throw_wire_overflow(rank_, static_cast<BucketId>(found - marks.begin()));
  }
}

}  // namespace paceline
