// SPDX-License-Identifier: Apache-2.0
// `paceline data`: a made-up sparse data set as files.
#include <fmt/format.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "common/config/config_file.h"
#include "common/data/sparse_dataset.h"
#include "common/observe/files.h"
#include "experiments/backends.h"
#include "experiments/commands.h"
#include "experiments/worker.h"

namespace paceline {

void add_data_command(CLI::App& program, Action& action) {
  auto* command = program.add_subcommand(
      "data", "Writes a made-up sparse data set in libsvm's format: FILE and FILE.t");
  command->footer(
      "Example:\n"
      "  paceline data --out rows.svm data.features=1000 data.train_limit=5000\n"
      "  paceline train --sync=hogwild --world=2 model=logistic data.name=libsvm "
      "data.path=rows.svm optimizer.momentum=0 optimizer.lr=2");
  auto out = std::make_shared<std::string>();
  auto overrides = std::make_shared<std::vector<std::string>>();
  command->add_option("--out", *out, "The file to write; FILE.t becomes the test set")->required();
  command->add_option("overrides", *overrides,
                      "seed and keys data.* of data.name=sparse, as a.b=c");
  command->callback([out, overrides, &action] {
    action = [out, overrides] {
      Config config;
      apply_overrides(config, *overrides);
      config.data.name = "sparse";
      config.model = "logistic";
      validate_run(config);
      const Datasets data = load_datasets(config);
      for (const auto& [set, path] :
           {std::pair(data.train.get(), *out), std::pair(data.test.get(), *out + ".t")}) {
        std::ostringstream text;
        write_libsvm(*set, text);
        write_file_atomically(path, text.str());
        fmt::print("{}: {} rows, {} features\n", path, set->size(), set->shape().elements());
      }
      return 0;
    };
  });
}

}  // namespace paceline
