// SPDX-License-Identifier: Apache-2.0
// The exceptions of Paceline. Each carries its whole context; the program's edge prints what() as
// one line and maps the type to an exit status.
#pragma once

#include <stdexcept>
#include <string>

namespace paceline {

/// The run failed (exit status 1).
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What the user asked for is not valid (exit status 2). The message names the key or file, the
/// value given and what is allowed.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A wait ran past its deadline.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

/// A member of the job died, closed its connection or fell silent.
class PeerLost : public Error {
 public:
  using Error::Error;
};

/// A signal asked the process to end (exit status 128 + signal).
class Interrupted : public Error {
 public:
  Interrupted(const std::string& what, int signal) : Error(what), signal_(signal) {}
  [[nodiscard]] int signal() const noexcept { return signal_; }

 private:
  int signal_;
};

}  // namespace paceline
