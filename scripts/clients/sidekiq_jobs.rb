# Sidekiq: its launcher in this process, with ten threads.
require "redis"
require "sidekiq"
require "sidekiq/api"
require "sidekiq/cli"
require "sidekiq/launcher"
require_relative "checks"

REDIS = Redis.new(url: "#{URL}/1")
Sidekiq.logger.level = Logger::FATAL
[:configure_server, :configure_client].each do |configure|
  Sidekiq.public_send(configure) { |config| config.redis = { url: "#{URL}/0" } }
end
Sidekiq.redis = { url: "#{URL}/0", size: 20 }

class Add
  include Sidekiq::Worker
  def perform(a, b)
    REDIS.hset("sums", a, a + b)
  end
end

class Third
  include Sidekiq::Worker
  sidekiq_options retry: 5
  sidekiq_retry_in { 0 }
  def perform
    raise "not yet" if REDIS.incr("tries") < 3
  end
end

class Fails
  include Sidekiq::Worker
  sidekiq_options retry: 0, dead: true
  def perform
    raise "no"
  end
end

class Noted
  include Sidekiq::Worker
  def perform(word)
    REDIS.rpush("noted", word)
    REDIS.set("noted at", Time.now.to_f)
  end
end

200.times { |n| Add.perform_async(n, n) }
check "jobs are queued", Sidekiq::Queue.new.size, 200
Add.perform_bulk((200...300).map { |n| [n, n] })
check "and by the hundred", Sidekiq::Queue.new.size, 300
Noted.set(queue: "low").perform_async("low")
Noted.set(queue: "high").perform_async("high")
options = Sidekiq.options.merge(queues: %w[high default low], strict: true, concurrency: 10,
  poll_interval_average: 0.2, tag: "clients", timeout: 5, labels: [])
Sidekiq.options.merge!(options)
launcher = Sidekiq::Launcher.new(options)
launcher.run
check "300 jobs are run", wait_until { REDIS.hlen("sums") == 300 }
check "each once with its arguments", REDIS.hgetall("sums").all? { |a, sum| sum.to_i == 2 * a.to_i }
check "and those of both queues", wait_until { REDIS.llen("noted") == 2 } &&
  REDIS.lrange("noted", 0, -1).sort, %w[high low]
Third.perform_async
check "a job is tried again", wait_until(60) { REDIS.get("tries") == "3" }
Fails.perform_async
check "a job that fails for good is dead", wait_until { Sidekiq::DeadSet.new.size == 1 }
check "with its error", Sidekiq::DeadSet.new.first["error_message"], "no"
Sidekiq::DeadSet.new.clear
started = Time.now.to_f
Noted.perform_in(1, "later")
check "a job for later is scheduled", Sidekiq::ScheduledSet.new.map(&:klass), ["Noted"]
check "and is run when it is due", wait_until { REDIS.llen("noted") == 3 } &&
  REDIS.get("noted at").to_f - started >= 1
never = Noted.perform_in(3600, "never")
check "a scheduled job is found and deleted",
  [Sidekiq::ScheduledSet.new.find_job(never).delete, Sidekiq::ScheduledSet.new.size], [true, 0]
large = "x" * 100_000
begin
  Noted.perform_in(3600, large)
  found = Sidekiq::ScheduledSet.new.first.args.first.size
rescue => error
  found = error.message
end
check "a job of 100,000 bytes is scheduled", found, 100_000
Noted.perform_async(large)
check "and is run", wait_until { REDIS.lindex("noted", -1).size == 100_000 }
check "what was run is counted", wait_until(20) { Sidekiq::Stats.new.processed >= 305 }
check "the process is known", wait_until(20) { Sidekiq::ProcessSet.new.size == 1 }
launcher.stop
check "and gone when it ends", wait_until { Sidekiq::ProcessSet.new.size == 0 }
check "no job is left", Sidekiq::Queue.all.sum(&:size), 0
