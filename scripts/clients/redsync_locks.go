// redsync: locks over go-redis.
package main

import (
	"context"
	"sync"
	"time"

	"clients/checks"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func main() {
	client := redis.NewClient(&redis.Options{Addr: checks.Address, Password: checks.Password})
	locks := redsync.New(goredis.NewPool(client))
	one := locks.NewMutex("one", redsync.WithExpiry(10*time.Second))
	checks.Must(one.Lock())
	checks.Check("a lock is held by one", locks.NewMutex("one").TryLock() != nil, true)
	before := client.PTTL(context.Background(), "one").Val()
	checks.Check("a lock has an end", before > 8*time.Second, true)
	checks.Check("and is extended", checks.Got(one.Extend()), true)
	checks.Check("and is given back", checks.Got(one.Unlock()), true)
	checks.Check("once", second(one.Unlock()) != nil, true)
	short := locks.NewMutex("short", redsync.WithExpiry(300*time.Millisecond))
	checks.Must(short.Lock())
	checks.Check("a lock that is not extended ends", checks.Until(func() bool {
		return locks.NewMutex("short").TryLock() == nil
	}), true)
	checks.Check("and is not given back by the one that had it", second(short.Unlock()) != nil, true)
	count := 0
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 20 {
				mutex := locks.NewMutex("shared", redsync.WithRetryDelay(2*time.Millisecond),
					redsync.WithTries(10_000))
				checks.Must(mutex.Lock())
				n := count
				time.Sleep(100 * time.Microsecond)
				count = n + 1
				checks.Got(mutex.Unlock())
			}
		}()
	}
	all.Wait()
	checks.Check("no increment of eight under a lock is lost", count, 160)
}

func second(_ bool, err error) error { return err }
