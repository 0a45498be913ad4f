// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/batch_upload.h"

#include <cstring>

#include "common/base/half.h"

namespace paceline {

namespace {

void store_inputs(std::span<const float> inputs, Precision format, const Buffer& to) {
  if (format == Precision::fp32) {
    std::memcpy(to.data(), inputs.data(), inputs.size_bytes());
    return;
  }
  const auto stored = to.as<std::uint16_t>().first(inputs.size());
  format == Precision::bf16 ? to_bfloat(inputs, 1.0F, stored) : to_half(inputs, 1.0F, stored);
}

}  // namespace

BatchUpload::BatchUpload(std::shared_ptr<GpuContext> context)
    : context_(std::move(context)), stream_(context_->gpu(), "of batches") {
  for (auto& slot : slots_) {
    slot = std::make_unique<Slot>(context_->gpu());
  }
}

BatchUpload::~BatchUpload() {
  if (!stream_.drain() || !context_->gpu().stream().drain()) {
    for (const auto& slot : slots_) {
      context_->gpu().keep(std::move(slot->host));
    }
  }
}

std::size_t BatchUpload::label_offset(std::size_t inputs) const noexcept {
  constexpr std::size_t kAlignment = 256;
  const std::size_t bytes = inputs * stored_bytes(context_->input_format());
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void BatchUpload::reserve(Slot& slot, std::size_t bytes) {
  if (bytes <= slot.host.size()) {
    return;
  }
  stream_.synchronize("the upload of a batch");
  slot.pinned.reset();
  slot.host.grow(bytes);
  slot.pinned =
      std::make_unique<PinnedRange>(context_->gpu(), std::span(slot.host.data(), slot.host.size()));
  context_->grow(slot.device, bytes, "a batch");
}

BatchUpload::OnDevice BatchUpload::put(const Batch& batch) {
  current_ = 1 - current_;
  Slot& slot = *slots_[current_];
  const std::size_t offset = label_offset(batch.inputs.size());
  const std::size_t bytes = offset + batch.labels.size_bytes();
  if (bytes > 0) {
    reserve(slot, bytes);
    slot.uploaded.synchronize("the upload of a batch (stream of batches)");
    store_inputs(batch.inputs, context_->input_format(), slot.host);
    std::memcpy(slot.host.data() + offset, batch.labels.data(), batch.labels.size_bytes());
    stream_.wait(slot.released);
    Gpu& gpu = context_->gpu();
    gpu.check(gpu.api().copy_to_device(slot.device.as(), slot.host.data(), bytes, stream_.native()),
              "uploading a batch");
    stream_.record(slot.uploaded);
    gpu.stream().wait(slot.uploaded);
  }
  auto* const at = slot.device.as<std::byte>();
  return {reinterpret_cast<const float*>(at), reinterpret_cast<const std::int32_t*>(at + offset)};
}

void BatchUpload::release() {
  context_->gpu().stream().record(slots_[current_]->released);
}

std::size_t BatchUpload::device_bytes() const noexcept {
  return slots_[0]->device.size() + slots_[1]->device.size();
}

}  // namespace paceline
