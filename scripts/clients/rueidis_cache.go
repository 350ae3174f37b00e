// rueidis: a cache at the client, locks, channels, streams, automatic pipelines.
package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"clients/checks"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

var ctx = context.Background()

func main() {
	option := rueidis.ClientOption{InitAddress: []string{checks.Address}, Password: checks.Password}
	client := checks.Got(rueidis.NewClient(option))
	other := checks.Got(rueidis.NewClient(option))
	do := func(words ...string) rueidis.RedisResult {
		return other.Do(ctx, other.B().Arbitrary(words[0]).Args(words[1:]...).Build())
	}
	checks.Must(do("FLUSHALL").Error())
	cached := func(key string) (string, bool) {
		result := client.DoCache(ctx, client.B().Get().Key(key).Cache(), time.Minute)
		value, err := result.ToString()
		if err != nil {
			value = err.Error()
		}
		return value, result.IsCacheHit()
	}
	checks.Must(do("SET", "key", "1").Error())
	first, hit := cached("key")
	checks.Check("a value is read", fmt.Sprint(first, hit), "1false")
	second, hit := cached("key")
	checks.Check("and then from the client's cache", fmt.Sprint(second, hit), "1true")
	for _, change := range [][]string{{"SET", "key", "2"}, {"INCR", "key"}, {"APPEND", "key", "0"},
		{"RENAME", "elsewhere", "key"}, {"DEL", "key"}} {
		checks.Must(do("SET", "elsewhere", "7").Error())
		cached("key")
		checks.Must(do(change...).Error())
		wanted, err := do("GET", "key").ToString()
		if err != nil {
			wanted = err.Error()
		}
		checks.Check("until another client changes it by "+change[0], checks.Until(func() bool {
			found, _ := cached("key")
			return found == wanted
		}), true)
	}
	checks.Must(do("SET", "brief", "1", "PX", "300").Error())
	cached("brief")
	checks.Check("a value in the cache expires with its key", checks.Until(func() bool {
		found, _ := cached("brief")
		return found == "redis nil message"
	}), true)
	checks.Must(do("HSET", "hash", "a", "1").Error())
	field := func() string {
		result := client.DoCache(ctx, client.B().Hget().Key("hash").Field("a").Cache(), time.Minute)
		return checks.Got(result.ToString())
	}
	field()
	checks.Must(do("HSET", "hash", "a", "2").Error())
	checks.Check("a field, too", checks.Until(func() bool { return field() == "2" }), true)
	for n := range 100 {
		checks.Must(do("SET", fmt.Sprint("many:", n), fmt.Sprint(n)).Error())
	}
	keys := []string{}
	for n := range 100 {
		keys = append(keys, fmt.Sprint("many:", n))
	}
	many := checks.Got(rueidis.MGetCache(client, ctx, time.Minute, keys))
	checks.Check("many are read into the cache", len(many), 100)
	checks.Must(do("FLUSHALL").Error())
	checks.Check("all is forgotten after FLUSHALL", checks.Until(func() bool {
		found, _ := cached("many:5")
		return found == "redis nil message"
	}), true)
	broadcast := option
	broadcast.ClientTrackingOptions = []string{"PREFIX", "user:", "BCAST"}
	listening := checks.Got(rueidis.NewClient(broadcast))
	checks.Must(do("SET", "user:1", "a").Error())
	name := func() string {
		return checks.Got(listening.DoCache(ctx, listening.B().Get().Key("user:1").Cache(),
			time.Minute).ToString())
	}
	name()
	checks.Must(do("SET", "user:1", "b").Error())
	checks.Check("a cache by prefixes", checks.Until(func() bool { return name() == "b" }), true)

	var all sync.WaitGroup
	for range 50 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 20 {
				checks.Must(client.Do(ctx, client.B().Incr().Key("sum").Build()).Error())
			}
		}()
	}
	all.Wait()
	checks.Check("fifty share a pipeline", checks.Got(do("GET", "sum").AsInt64()), int64(1000))
	script := rueidis.NewLuaScript("return {KEYS[1], ARGV[1]}")
	checks.Check("a script", fmt.Sprint(checks.Got(
		script.Exec(ctx, client, []string{"k"}, []string{"a"}).AsStrSlice())), "[k a]")
	err := client.Dedicated(func(c rueidis.DedicatedClient) error {
		c.Do(ctx, c.B().Watch().Key("sum").Build())
		checks.Must(do("INCR", "sum").Error())
		replies := c.DoMulti(ctx, c.B().Multi().Build(), c.B().Set().Key("sum").Value("0").Build(),
			c.B().Exec().Build())
		return replies[2].Error()
	})
	checks.Check("a watched key that was changed", rueidis.IsRedisNil(err), true)
	heard := make(chan string, 1)
	listen, stop := context.WithCancel(ctx)
	go client.Receive(listen, client.B().Subscribe().Channel("news").Build(),
		func(message rueidis.PubSubMessage) { heard <- message.Message })
	checks.Until(func() bool { return checks.Got(do("PUBLISH", "news", "hello").AsInt64()) > 0 })
	checks.Check("a channel", <-heard, "hello")
	stop()
	checks.Must(do("XADD", "stream", "*", "n", "1").Error())
	checks.Must(do("XGROUP", "CREATE", "stream", "group", "0").Error())
	read := checks.Got(client.Do(ctx, client.B().Xreadgroup().Group("group", "me").Streams().
		Key("stream").Id(">").Build()).AsXRead())
	checks.Check("a group reads", read["stream"][0].FieldValues["n"], "1")
	locks := func() rueidislock.Locker {
		return checks.Got(rueidislock.NewLocker(rueidislock.LockerOption{ClientOption: option,
			KeyMajority: 1, NoLoopTracking: true}))
	}
	mine, theirs := locks(), locks()
	held, release := checks.Got2(mine.WithContext(ctx, "lock"))
	_, _, err = theirs.TryWithContext(ctx, "lock")
	checks.Check("a lock is held by one", fmt.Sprint(err != nil, held.Err()),
		"true <nil>")
	got := make(chan error)
	go func() {
		_, release, err := theirs.WithContext(ctx, "lock")
		if err == nil {
			release()
		}
		got <- err
	}()
	release()
	checks.Check("one that waits for a lock is woken", <-got, error(nil))
}
