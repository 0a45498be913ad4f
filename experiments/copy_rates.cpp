// SPDX-License-Identifier: Apache-2.0
#include "experiments/copy_rates.h"

#include <algorithm>
#include <memory>

#include "common/base/median.h"
#include "common/core/gpu/gpu.h"

namespace paceline {

namespace {

constexpr int kCopyRepetitions = 5;
constexpr int kCopiesWithin = 8;  ///< in a row: one takes little longer than an event

/// A GPU with what is copied from it and to it.
class CopySide {
 public:
  CopySide(const CudaModule& module, int index, std::size_t bytes, Nanoseconds timeout)
      : gpu_(module, {.index = index, .timeout = timeout}),
        from_(gpu_, bytes, "what is copied"),
        to_(gpu_, bytes, "a copy"),
        begin_(gpu_, true),
        end_(gpu_, true) {
    constexpr int kSomeByte = 0x5A;
    gpu_.check(gpu_.api().fill(from_.as(), kSomeByte, bytes, gpu_.stream().native()),
               "filling memory");
    gpu_.stream().synchronize("filled memory");
  }
  CopySide(const CopySide&) = delete;
  CopySide& operator=(const CopySide&) = delete;
  ~CopySide() { gpu_.stream().drain(); }

  double rate_within() {
    return rate(kCopiesWithin, [&] {
      gpu_.check(gpu_.api().copy(to_.as(), from_.as(), from_.size(), gpu_.stream().native()),
                 "copying within a device");
    });
  }
  double rate_to(const CopySide& peer) {
    gpu_.check(gpu_.api().open_peer(gpu_.index(), peer.gpu_.index()), "opening peer access");
    return rate(1, [&] {
      gpu_.check(gpu_.api().copy_to_peer(peer.to_.as(), peer.gpu_.index(), from_.as(), gpu_.index(),
                                         from_.size(), gpu_.stream().native()),
                 "copying to another device");
    });
  }
  [[nodiscard]] bool direct_to(const CopySide& peer) const {
    int possible = 0;
    gpu_.check(gpu_.api().peer_access(gpu_.index(), peer.gpu_.index(), &possible),
               "asking for peer access");
    return possible != 0;
  }

 private:
  /// An untimed copy goes before the timed ones, so that these are queued while it runs.
  template <typename Copy>
  double rate(int copies, Copy copy) {
    gpu_.make_current();
    copy();
    gpu_.stream().synchronize("the end of a copy");
    std::vector<double> seconds;
    for (int i = 0; i < kCopyRepetitions; ++i) {
      copy();
      gpu_.stream().record(begin_);
      for (int j = 0; j < copies; ++j) {
        copy();
      }
      gpu_.stream().record(end_);
      end_.synchronize("the end of timed copies");
      seconds.push_back(end_.seconds_since(begin_));
    }
    return static_cast<double>(from_.size()) * copies / median(seconds);
  }

  Gpu gpu_;
  GpuMemory from_;
  GpuMemory to_;
  GpuEvent begin_;
  GpuEvent end_;
};

}  // namespace

double CopyRates::slowest() const {
  double rate = 0.0;
  for (std::size_t a = 0; a < between.size(); ++a) {
    for (std::size_t b = 0; b < between.size(); ++b) {
      if (a != b) {
        rate = rate > 0.0 ? std::min(rate, between[a][b]) : between[a][b];
      }
    }
  }
  return rate;
}

double CopyRates::fastest() const {
  double rate = 0.0;
  for (const std::vector<double>& from : between) {
    rate = std::max(rate, from.empty() ? 0.0 : std::ranges::max(from));
  }
  return rate;
}

CopyRates measure_copies(const CudaModule& module, int gpus, std::size_t bytes,
                         Nanoseconds timeout) {
  std::vector<std::unique_ptr<CopySide>> sides;
  for (int index = 0; index < gpus; ++index) {
    sides.push_back(std::make_unique<CopySide>(module, index, bytes, timeout));
  }
  CopyRates rates;
  rates.bytes = bytes;
  for (const auto& from : sides) {
    rates.within.push_back(from->rate_within());
    std::vector<double>& row = rates.between.emplace_back();
    std::vector<bool>& direct = rates.direct.emplace_back();
    for (const auto& to : sides) {
      const bool same = from == to;
      row.push_back(same ? 0.0 : from->rate_to(*to));
      direct.push_back(!same && from->direct_to(*to));
    }
  }
  return rates;
}

}  // namespace paceline
