// SPDX-License-Identifier: Apache-2.0
// Open MPI's side of allreduce_peers.py. Prints "bytes microseconds" per size: sums in place, a
// barrier before each run, the slowest rank's time, the median over runs.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int iters = argc > 1 ? std::atoi(argv[1]) : 20;
  std::vector<std::size_t> sizes;
  for (int i = 2; i < argc; ++i) {
    sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  }
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::size_t largest = *std::max_element(sizes.begin(), sizes.end());
  auto* data = static_cast<float*>(std::malloc(largest));
  std::fill(data, data + largest / sizeof(float), 0.0F);
  for (const std::size_t bytes : sizes) {
    const auto count = static_cast<int>(bytes / sizeof(float));
    const auto repeat =
        static_cast<int>(std::clamp<std::size_t>((std::size_t{1} << 20) / bytes, 1, 50));
    const int warmup = std::max(1, iters / 4) * repeat;
    std::vector<double> times;
    for (int i = 0; i < warmup + iters * repeat; ++i) {
      MPI_Barrier(MPI_COMM_WORLD);
      const double begin = MPI_Wtime();
      MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      if (i >= warmup) {
        times.push_back(MPI_Wtime() - begin);
      }
    }
    MPI_Allreduce(MPI_IN_PLACE, times.data(), static_cast<int>(times.size()), MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
    std::sort(times.begin(), times.end());
    if (rank == 0) {
      std::printf("%zu %.3f\n", bytes, times[times.size() / 2] * 1e6);
      std::fflush(stdout);
    }
  }
  std::free(data);
  MPI_Finalize();
  return 0;
}
