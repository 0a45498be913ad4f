// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "common/comm/job.h"
#include "common/comm/job_connection.h"
#include "common/comm/job_frame.h"
#include "common/comm/job_hello.h"
#include "common/comm/job_rounds.h"
#include "common/comm/job_timing.h"

namespace paceline {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::size_t kMaxStrangers = 256;
constexpr std::chrono::milliseconds kAcceptRetry{50};

}  // namespace

/// Everything below runs on thread_, except the constructor, the destructor and what the mutex
/// guards.
class JobHub::Impl final : public JobConnection::Listener {
 public:
  Impl(const JobSpec& spec, const std::string& host, std::uint16_t port)
      : spec_(spec),
        acceptor_(io_),
        accept_timer_(io_),
        timer_(io_),
        ticker_(spec.timeout),
        members_(static_cast<std::size_t>(spec.world + spec.servers)),
        rounds_(static_cast<std::size_t>(spec.world), members_.size()) {
    listen(host, port);
    accept();
    schedule_tick();
    thread_ = std::thread([this] { io_.run(); });
  }

  ~Impl() override {
    linger();
    asio::post(io_, [this] {
      accept_timer_.cancel();
      timer_.cancel();
      error_code ignored;
      acceptor_.close(ignored);
      stopping_ = true;
      for (const auto& connection : connections_) {
        connection->close();
      }
    });
    thread_.join();
  }

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }

  void abort(const std::string& reason) {
    asio::post(io_, [this, reason] { end({EndKind::error, reason}); });
  }

  [[nodiscard]] std::exception_ptr cause() const {
    const std::scoped_lock lock(mutex_);
    return failure_ ? to_exception(*failure_) : nullptr;
  }

 private:
  struct Member {
    std::shared_ptr<JobConnection> connection;
    bool left = false;  ///< said goodbye, failed, or is lost
  };

  // ---- Connections

  void listen(const std::string& host, std::uint16_t port) {
    const std::string where = endpoint_text(host, port);
    try {
      tcp::resolver resolver(io_);
      const auto found = resolver.resolve(host, std::to_string(port));
      const tcp::endpoint endpoint = found.begin()->endpoint();
      acceptor_.open(endpoint.protocol());
      acceptor_.set_option(tcp::acceptor::reuse_address(true));
      acceptor_.bind(endpoint);
      acceptor_.listen();
      port_ = acceptor_.local_endpoint().port();
    } catch (const boost::system::system_error& error) {
      throw ConfigError(fmt::format(
          "cannot listen on {}: {}; it must be a free port of an address of this machine", where,
          error.code().message()));
    }
  }

  void accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (stopping_ || error == asio::error::operation_aborted) {
        return;
      }
      if (error) {  // no descriptors left, say: pause, or this would spin
        accept_timer_.expires_after(kAcceptRetry);
        accept_timer_.async_wait([this](error_code cancelled) {
          if (!cancelled && !stopping_) {
            accept();
          }
        });
        return;
      }
      take_in(std::move(socket));
      accept();
    });
  }

  void take_in(tcp::socket socket) {
    const auto strangers =
        std::ranges::count_if(connections_, [](const auto& c) { return c->member < 0; });
    if (static_cast<std::size_t>(strangers) >= kMaxStrangers) {
      return;
    }
    auto connection =
        std::make_shared<JobConnection>(std::move(socket), FrameReader::From::stranger, *this);
    connections_.push_back(connection);
    connection->start();
  }

  void on_closed(JobConnection& connection, const std::string& why) override {
    if (connection.member >= 0) {
      lost(connection.member, why);
    }
  }

  void on_frame(JobConnection& connection, Frame frame) override {
    if (frame.type == FrameType::hello) {
      join(connection, decode_hello(frame.payload));
    } else if (frame.type == FrameType::gather) {
      contribute(connection.member, decode_gather(frame.payload));
    } else if (frame.type == FrameType::goodbye) {
      leave(connection.member);
      connection.close_after_sending();
      notify_left();
    } else if (frame.type == FrameType::failed) {
      failed(connection.member, decode_end(frame.payload));
      notify_left();
    }
  }

  // ---- Joining

  void join(JobConnection& connection, const Hello& hello) {
    if (const auto mistake = refusal(hello)) {
      connection.send(encode(FrameType::job_over, *mistake));
      connection.close_after_sending();
      // A member of this job that is set up wrongly leaves a place that nobody will fill.
      if (hello.nonce == spec_.nonce && joined_ < members_.size()) {
        end(*mistake);
      }
      return;
    }
    connection.member = static_cast<int>(hello.member);
    connection.set_sender(FrameReader::From::member);
    members_[hello.member].connection = connection.shared_from_this();
    if (++joined_ == members_.size()) {
      broadcast(encode_empty(FrameType::welcome));
    }
  }

  [[nodiscard]] std::optional<JobEnd> refusal(const Hello& hello) const {
    std::optional<JobEnd> mistake = mistake_in(hello, spec_, port_);
    if (failure_ && !(mistake && mistake->kind == EndKind::other_job)) {
      return failure_;
    }
    if (!mistake && members_[hello.member].connection) {
      return JobEnd{EndKind::config,
                    fmt::format("{} joined twice: every process needs a number of its own",
                                member_name(static_cast<int>(hello.member), spec_.world))};
    }
    return mistake;
  }

  // ---- Collectives

  void contribute(int member, Gather gather) {
    if (failure_ || members_[static_cast<std::size_t>(member)].left) {
      return;
    }
    const auto index = static_cast<std::size_t>(member);
    if (const std::string instead = rounds_.refusal(index, gather); !instead.empty()) {
      end({EndKind::error, fmt::format("{} {}", member_name(member, spec_.world), instead)});
      return;
    }
    if (const auto result = rounds_.contribute(index, std::move(gather))) {
      give(*result);
    } else {
      check_left();
    }
  }

  void give(const GatherResult& result) {
    try {
      const auto frame = std::make_shared<const std::string>(encode(result));
      for (std::size_t member = 0; member < rounds_.size(result.group); ++member) {
        members_[member].connection->send(frame);
      }
    } catch (const Error& error) {
      end({EndKind::error, error.what()});
    }
  }

  /// A collective that waits for a member which has left cannot complete.
  void check_left() {
    for (std::size_t member = 0; member < members_.size() && !failure_ && !held_back_; ++member) {
      if (members_[member].left && rounds_.awaits(member)) {
        end({EndKind::peer_lost,
             fmt::format("{} ended while the others waited for it in a collective",
                         member_name(static_cast<int>(member), spec_.world))});
      }
    }
  }

  // ---- The end

  void leave(int member) {
    members_[static_cast<std::size_t>(member)].left = true;
    check_left();
  }

  void lost(int member, const std::string& why) {
    Member& state = members_[static_cast<std::size_t>(member)];
    if (!state.left) {
      state.left = true;
      end({EndKind::peer_lost, fmt::format("{} lost: {}", member_name(member, spec_.world), why)});
    }
    notify_left();
  }

  /// A failure that follows from another member's loss is held back a little: the hub is about to
  /// hear of the cause itself.
  void failed(int member, const JobEnd& failure) {
    members_[static_cast<std::size_t>(member)].left = true;
    const bool own = failure.kind == EndKind::error || failure.kind == EndKind::config;
    const std::string name = member_name(member, spec_.world);
    std::string why = failure.reason;
    if (why.starts_with(name + ": ")) {
      why.erase(0, name.size() + 2);
    }
    JobEnd reason{own ? failure.kind : EndKind::error, fmt::format("{} failed: {}", name, why)};
    if (own) {
      end(std::move(reason));
    } else if (!held_back_) {
      held_back_ = std::move(reason);
    }
  }

  void end(JobEnd reason) {
    if (failure_) {
      return;
    }
    {
      const std::scoped_lock lock(mutex_);
      failure_ = std::move(reason);
    }
    broadcast(encode(FrameType::job_over, *failure_));
    left_.notify_all();
  }

  void broadcast(std::string frame) {
    const auto shared = std::make_shared<const std::string>(std::move(frame));
    for (const Member& member : members_) {
      if (member.connection) {
        member.connection->send(shared);
      }
    }
  }

  // ---- Time

  void schedule_tick() {
    timer_.expires_after(ticker_.interval());
    timer_.async_wait([this](error_code cancelled) {
      if (!cancelled && !stopping_) {  // a timer that has fired cannot be cancelled any more
        tick(ticker_.elapsed());
        schedule_tick();
      }
    });
  }

  void tick(Nanoseconds elapsed) {
    if (ticker_.heartbeat_due(elapsed)) {
      broadcast(encode_empty(FrameType::heartbeat));
    }
    watch_silence(elapsed);
    std::erase_if(connections_, [](const auto& connection) { return !connection->open(); });
    if (failure_) {
      return;
    }
    if (held_back_ && (held_for_ += elapsed) >= settle_time(spec_.timeout)) {
      end(*held_back_);
    }
    watch_rendezvous(elapsed);
    watch_rounds(elapsed);
  }

  void watch_silence(Nanoseconds elapsed) {
    const Nanoseconds limit = silence_limit(spec_.timeout);
    for (const auto& connection : connections_) {
      if (!connection->open() || connection->add_silence(elapsed) < limit) {
        continue;
      }
      connection->close();
      if (connection->member >= 0) {
        lost(connection->member, fmt::format("silent for {:.1f} s", seconds(limit.count())));
      }
    }
  }

  void watch_rendezvous(Nanoseconds elapsed) {
    if (failure_ || joined_ == members_.size()) {
      return;
    }
    rendezvous_ += elapsed;
    if (rendezvous_ >= spec_.timeout) {
      std::vector<int> missing;
      for (std::size_t member = 0; member < members_.size(); ++member) {
        if (!members_[member].connection) {
          missing.push_back(static_cast<int>(member));
        }
      }
      end({EndKind::timeout,
           fmt::format("{} did not join within {:.1f} s", list_names(missing, spec_.world),
                       seconds(spec_.timeout.count()))});
    }
  }

  void watch_rounds(Nanoseconds elapsed) {
    if (failure_) {
      return;
    }
    if (const auto missing = rounds_.overdue(elapsed, spec_.timeout); !missing.empty()) {
      end({EndKind::timeout,
           fmt::format("{} did not reach the collective within {:.1f} s",
                       list_names(missing, spec_.world), seconds(spec_.timeout.count()))});
    }
  }

  // ---- Destruction

  /// Members that are still to say goodbye get the time for it: a hub that vanished under them
  /// would look like a loss.
  void linger() {
    std::unique_lock lock(mutex_);
    const Deadline whole = Deadline::after(spec_.timeout);
    const Deadline after_failure =
        Deadline::after(std::min<Nanoseconds>(spec_.timeout, std::chrono::milliseconds(500)));
    while (!all_left_ && !(failure_ ? after_failure : whole).passed()) {
      asio::post(io_, [this] { notify_left(); });
      left_.wait_for(lock, kAbortPollInterval);
    }
  }

  void notify_left() {
    const bool all = std::ranges::all_of(members_, [](const Member& member) {
      return !member.connection || (member.left && !member.connection->sending());
    });
    {
      const std::scoped_lock lock(mutex_);
      all_left_ = all;
    }
    left_.notify_all();
  }

  const JobSpec spec_;
  asio::io_context io_;
  tcp::acceptor acceptor_;
  asio::steady_timer accept_timer_;
  asio::steady_timer timer_;
  Ticker ticker_;
  std::uint16_t port_ = 0;
  bool stopping_ = false;
  std::vector<std::shared_ptr<JobConnection>> connections_;
  std::vector<Member> members_;
  JobRounds rounds_;
  std::size_t joined_ = 0;
  Nanoseconds rendezvous_{0};
  std::optional<JobEnd> held_back_;
  Nanoseconds held_for_{0};

  mutable std::mutex mutex_;  // guards the two below; failure_ is written by thread_ alone
  std::optional<JobEnd> failure_;
  bool all_left_ = false;
  std::condition_variable left_;
  std::thread thread_;
};

JobHub::JobHub(const JobSpec& spec, const std::string& host, std::uint16_t port)
    : impl_(std::make_unique<Impl>(spec, host, port)) {}
JobHub::~JobHub() = default;
std::uint16_t JobHub::port() const noexcept {
  return impl_->port();
}
void JobHub::abort(const std::string& reason) {
  impl_->abort(reason);
}
std::exception_ptr JobHub::cause() const {
  return impl_->cause();
}
std::string JobHub::failure() const {
  try {
    if (const std::exception_ptr error = cause()) {
      std::rethrow_exception(error);
    }
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace paceline
