// go-redis: values, pipelines, transactions, scripts, channels, streams, a pool.
package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"clients/checks"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

type pair struct {
	Name  string `redis:"name"`
	Count int    `redis:"count"`
}

func main() {
	for _, protocol := range []int{2, 3} {
		client := redis.NewClient(&redis.Options{
			Addr: checks.Address, Password: checks.Password, Protocol: protocol, PoolSize: 10,
			ContextTimeoutEnabled: true,
		})
		use(client, fmt.Sprintf("RESP%d, ", protocol))
		checks.Must(client.Close())
	}
}

func use(client *redis.Client, with string) {
	check := func(name string, found, wanted any) { checks.Check(with+name, found, wanted) }
	checks.Must(client.FlushAll(ctx).Err())
	checks.Must(client.Set(ctx, "key", "v\x00\xff", time.Minute).Err())
	check("a value is read back", client.Get(ctx, "key").Val(), "v\x00\xff")
	check("a key that is not there is nil", client.Get(ctx, "none").Err(), redis.Nil)
	check("a value expires", client.TTL(ctx, "key").Val() > 50*time.Second, true)
	check("a value that is there is kept", client.SetNX(ctx, "key", "x", 0).Val(), false)
	results, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for n := 0; n < 1000; n++ {
			pipe.IncrBy(ctx, "sum", int64(n))
		}
		return nil
	})
	checks.Must(err)
	check("a pipeline of a thousand", results[999].(*redis.IntCmd).Val(), int64(499500))
	checks.Must(client.HSet(ctx, "hash", pair{"x", 7}).Err())
	var found pair
	checks.Must(client.HGetAll(ctx, "hash").Scan(&found))
	check("a hash is read into a struct", found, pair{"x", 7})
	for n := 0; n < 100; n++ {
		client.ZAdd(ctx, "ranks", redis.Z{Score: float64(n) / 2, Member: fmt.Sprint("m", n)})
	}
	check("a sorted set by scores", client.ZRangeByScore(ctx, "ranks",
		&redis.ZRangeBy{Min: "1", Max: "(2"}).Val(), []string{"m2", "m3"})
	rank := client.ZRankWithScore(ctx, "ranks", "m50")
	if errors.Is(rank.Err(), redis.Nil) || rank.Err() != nil {
		check("a rank", client.ZRank(ctx, "ranks", "m50").Val(), int64(50))
	} else {
		check("a rank", rank.Val().Rank, int64(50))
	}
	counted(client, check)
	script := redis.NewScript("return {redis.call('INCR', KEYS[1]), ARGV[1]}")
	check("a script", script.Run(ctx, client, []string{"n"}, "a").Val(), []any{int64(1), "a"})
	checks.Must(client.ScriptFlush(ctx).Err())
	check("a script that was forgotten is sent again",
		script.Run(ctx, client, []string{"n"}, "b").Val(), []any{int64(2), "b"})
	check("an error of a command", client.LPush(ctx, "key", 1).Err().Error(),
		"WRONGTYPE Operation against a key holding the wrong kind of value")
	channels(client, check)
	streams(client, check)
	popped := make(chan []string)
	go func() { popped <- client.BLPop(ctx, 10*time.Second, "later").Val() }()
	checks.Must(client.RPush(ctx, "later", "x").Err())
	check("one that waits is woken", <-popped, []string{"later", "x"})
	for n := 0; n < 300; n++ {
		client.Set(ctx, fmt.Sprint("scan:", n), n, 0)
	}
	seen := map[string]bool{}
	for each := client.Scan(ctx, 0, "scan:*", 7).Iterator(); each.Next(ctx); {
		seen[each.Val()] = true
	}
	check("keys are iterated over", len(seen), 300)
	places := []*redis.GeoLocation{{Name: "Berlin", Longitude: 13.4, Latitude: 52.5},
		{Name: "Paris", Longitude: 2.35, Latitude: 48.85}}
	checks.Must(client.GeoAdd(ctx, "places", places...).Err())
	check("places", client.GeoSearch(ctx, "places", &redis.GeoSearchQuery{Longitude: 13, Latitude: 52,
		Radius: 200, RadiusUnit: "km"}).Val(), []string{"Berlin"})
	client.PFAdd(ctx, "visitors", "a", "b", "c", "a")
	check("different elements are counted", client.PFCount(ctx, "visitors").Val(), int64(3))
	client.SetBit(ctx, "bits", 70, 1)
	check("bits", client.BitCount(ctx, "bits", nil).Val(), int64(1))
	waiting, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	check("a wait that is given up", client.BLPop(waiting, 0, "never").Err() != nil, true)
	check("and the pool goes on", client.Ping(ctx).Val(), "PONG")
	other := redis.NewClient(&redis.Options{Addr: checks.Address, Password: checks.Password, DB: 1})
	check("another database is empty", other.DBSize(ctx).Val(), int64(0))
	wrong := redis.NewClient(&redis.Options{Addr: checks.Address, Password: "no", MaxRetries: -1})
	check("a wrong password is refused", wrong.Ping(ctx).Err() != nil, true)
}

// Increments of a watched key, by eight at once.
func counted(client *redis.Client, check func(string, any, any)) {
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 10 {
				for {
					err := client.Watch(ctx, func(tx *redis.Tx) error {
						n, err := tx.Get(ctx, "watched").Int()
						if err != nil && err != redis.Nil {
							return err
						}
						_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
							pipe.Set(ctx, "watched", n+1, 0)
							return nil
						})
						return err
					}, "watched")
					if err == nil {
						break
					}
				}
			}
		}()
	}
	all.Wait()
	check("no increment of a watched key is lost", client.Get(ctx, "watched").Val(), "80")
}

func channels(client *redis.Client, check func(string, any, any)) {
	heard := client.Subscribe(ctx, "news")
	pattern := client.PSubscribe(ctx, "n*")
	checks.Got(heard.Receive(ctx))
	checks.Got(pattern.Receive(ctx))
	check("two hear a message", client.Publish(ctx, "news", "hello").Val(), int64(2))
	check("by its channel", (<-heard.Channel()).Payload, "hello")
	check("and by a pattern", (<-pattern.Channel()).Pattern, "n*")
	checks.Must(heard.Close())
	checks.Must(pattern.Close())
}

func streams(client *redis.Client, check func(string, any, any)) {
	for n := 0; n < 10; n++ {
		client.XAdd(ctx, &redis.XAddArgs{Stream: "stream", Values: []any{"n", n}})
	}
	checks.Must(client.XGroupCreate(ctx, "stream", "group", "0").Err())
	read := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "group", Consumer: "me",
		Streams: []string{"stream", ">"}, Count: 4}).Val()
	check("a group reads", len(read[0].Messages), 4)
	check("what is acknowledged",
		client.XAck(ctx, "stream", "group", read[0].Messages[0].ID).Val(), int64(1))
	check("what is pending", client.XPending(ctx, "stream", "group").Val().Count, int64(3))
	claimed, _ := client.XAutoClaim(ctx, &redis.XAutoClaimArgs{Stream: "stream", Group: "group",
		Consumer: "you", Start: "0"}).Val()
	check("what is claimed", len(claimed), 3)
	check("what a group is", client.XInfoGroups(ctx, "stream").Val()[0].Lag, int64(6))
}
