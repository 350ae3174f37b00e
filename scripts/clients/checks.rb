# How the Ruby programs of this folder say what holds: a line for each check.
$stdout.sync = true
URL = ENV.fetch("SERVER_URL")

def check(name, found, wanted = true)
  if found == wanted
    puts "ok #{name}"
  else
    puts "not ok #{name}: #{found.inspect} and not #{wanted.inspect}"
  end
end

# The value of the block as soon as it is true, or the last one after that time.
def wait_until(seconds = 30)
  ending = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
  loop do
    value = yield
    return value if value || Process.clock_gettime(Process::CLOCK_MONOTONIC) > ending
    sleep 0.05
  end
end
