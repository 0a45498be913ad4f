// SPDX-License-Identifier: Apache-2.0
// Gloo's side of allreduce_peers.py: allreduce_gloo RANK WORLD FOLDER ITERS BYTES... Prints
// "bytes microseconds" per size: a barrier before each run, the slowest rank's time, the median.
#include <gloo/allreduce.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename T>
void allreduce(const std::shared_ptr<gloo::Context>& context, T* data, std::size_t count,
               gloo::AllreduceOptions::Func sum) {
  gloo::AllreduceOptions options(context);
  options.setOutput(data, count);
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setReduceFunction(std::move(sum));
  gloo::allreduce(options);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    return 2;
  }
  const int rank = std::atoi(argv[1]);
  const int world = std::atoi(argv[2]);
  const int iters = std::atoi(argv[4]);
  gloo::transport::tcp::attr attributes("127.0.0.1");
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(argv[3]);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, world);
  context->connectFullMesh(store, device);
  std::vector<std::size_t> sizes;
  for (int i = 5; i < argc; ++i) {
    sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  }
  std::vector<float> data(*std::max_element(sizes.begin(), sizes.end()) / sizeof(float));
  using Reduce = void (*)(void*, const void*, const void*, std::size_t);
  const auto sum = static_cast<Reduce>(&gloo::sum<float>);
  const auto largest = static_cast<Reduce>(&gloo::max<double>);
  for (const std::size_t bytes : sizes) {
    const auto repeat =
        static_cast<int>(std::clamp<std::size_t>((std::size_t{1} << 20) / bytes, 1, 50));
    const int warmup = std::max(1, iters / 4) * repeat;
    std::vector<double> times;
    for (int i = 0; i < warmup + iters * repeat; ++i) {
      gloo::BarrierOptions barrier(context);
      gloo::barrier(barrier);
      const double begin = now();
      allreduce(context, data.data(), bytes / sizeof(float), sum);
      if (i >= warmup) {
        times.push_back(now() - begin);
      }
    }
    allreduce(context, times.data(), times.size(), largest);
    std::sort(times.begin(), times.end());
    if (rank == 0) {
      std::printf("%zu %.3f\n", bytes, times[times.size() / 2] * 1e6);
      std::fflush(stdout);
    }
  }
  gloo::BarrierOptions barrier(context);
  gloo::barrier(barrier);
  return 0;
}
