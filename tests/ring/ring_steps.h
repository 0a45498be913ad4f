// SPDX-License-Identifier: Apache-2.0
// Steps of one sample a rank, with a gradient by element, rank and step.
#pragma once

#include "tests/support/backend_conformance.h"

namespace paceline::testing {

template <typename Gradient>
StepReport one_sample_step(ConformanceWorker& worker, int t, int world, Gradient gradient) {
  return take_step(
      worker, {t, 0.125F, 1, world}, [&](std::size_t j) { return gradient(j, worker.rank, t); },
      [](const Range&) {});
}

/// The case's steps; the outcome counts the bytes of the last one too.
template <typename Gradient>
ConformanceOutcome run_one_sample_steps(const Backend& backend, const ConformanceCase& test,
                                        Gradient gradient) {
  return run_backend(backend, test, [&](ConformanceWorker& worker) {
    StepReport sum;
    for (int t = 0; t < test.steps; ++t) {
      sum.bytes_sent += one_sample_step(worker, t, test.config.world, gradient).bytes_sent;
    }
    worker.synchronizer.quiesce();
    sum.bytes_sent += worker.synchronizer.commit().bytes_sent;  // what the last step cost
    return sum;
  });
}

}  // namespace paceline::testing
