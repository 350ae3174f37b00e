# The cache of Rails in Redis: ActiveSupport::Cache::RedisCacheStore.
require "active_support"
require "active_support/core_ext/numeric/bytes"
require "active_support/core_ext/numeric/time"
require "active_support/cache"
require "active_support/cache/redis_cache_store"
require_relative "checks"

errors = []
handler = ->(method:, returning:, exception:) { errors << "#{method}: #{exception.message}" }
cache = ActiveSupport::Cache::RedisCacheStore.new(url: "#{URL}/1", namespace: "site",
  error_handler: handler)
value = { "words" => %w[a b] * 2000, number: 1 }
cache.write("key", value)
check "a value is read back", cache.read("key"), value
check "a key that is not there is nil", cache.read("none"), nil
check "a key is there", [cache.exist?("key"), cache.exist?("none")], [true, false]
check "a block fills what is missing", [cache.fetch("filled") { 9 }, cache.fetch("filled") { 1 }],
  [9, 9]
check "a value is written once", [cache.write("once", 1, unless_exist: true),
  cache.write("once", 2, unless_exist: true), cache.read("once")], [true, false, 1]
cache.write_multi((0...200).to_h { |n| ["many#{n}", n] })
check "many are read at once", cache.read_multi(*(0...200).map { |n| "many#{n}" }).size, 200
check "and filled at once", cache.fetch_multi("many1", "new") { |key| key.upcase },
  { "many1" => 1, "new" => "NEW" }
check "numbers are counted", [cache.increment("count", 5), cache.increment("count"),
  cache.decrement("count", 2)], [5, 6, 4]
check "a counter expires", [cache.increment("short", 1, expires_in: 60),
  cache.redis.ttl("site:short").between?(50, 60)], [1, true]
cache.write("brief", 1, expires_in: 1)
check "a value expires", [cache.read("brief"), wait_until { cache.read("brief").nil? }], [1, true]
cache.write("race", "old", expires_in: 0.5)
sleep 0.6
check "one renews what has expired",
  cache.fetch("race", expires_in: 60, race_condition_ttl: 10) { "new" }, "new"
check "keys are deleted", [!!cache.delete("key"), cache.read("key"),
  cache.delete_multi(%w[many1 many2 none])], [true, nil, 2]
cache.delete_matched("many1*")
check "by a pattern", cache.read_multi(*(0...200).map { |n| "many#{n}" }).size, 200 - 2 - 110
cache.write("binary", "\x00\xff".b)
check "bytes", cache.read("binary"), "\x00\xff".b
cache.write("large", "x" * 3_000_000, compress: false)
check "a value of three million bytes", cache.read("large").size, 3_000_000
threads = 8.times.map { Thread.new { 50.times { cache.increment("total") } } }
threads.each(&:join)
check "no increment of eight threads is lost", cache.read("total", raw: true).to_i, 400
other = ActiveSupport::Cache::RedisCacheStore.new(url: "#{URL}/1", namespace: "other")
other.write("key", 1)
cache.clear
check "a namespace is cleared", [cache.read("total"), other.read("key")], [nil, 1]
check "no command failed", errors, []
