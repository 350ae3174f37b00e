// asynq: a server with ten workers in this process.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"clients/checks"

	"github.com/hibiken/asynq"
)

func main() {
	connection := asynq.RedisClientOpt{Addr: checks.Address, Password: checks.Password}
	client := asynq.NewClient(connection)
	inspector := asynq.NewInspector(connection)
	var lock sync.Mutex
	tries, order := 0, []string{}
	var ran time.Time
	mux := asynq.NewServeMux()
	mux.HandleFunc("add", func(_ context.Context, task *asynq.Task) error {
		var numbers []int
		if err := json.Unmarshal(task.Payload(), &numbers); err != nil {
			return err
		}
		_, err := fmt.Fprint(task.ResultWriter(), numbers[0]+numbers[1])
		return err
	})
	mux.HandleFunc("third", func(_ context.Context, task *asynq.Task) error {
		lock.Lock()
		defer lock.Unlock()
		if tries++; tries < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	mux.HandleFunc("fail", func(context.Context, *asynq.Task) error {
		return fmt.Errorf("no: %w", asynq.SkipRetry)
	})
	mux.HandleFunc("when", func(context.Context, *asynq.Task) error {
		lock.Lock()
		defer lock.Unlock()
		ran = time.Now()
		return nil
	})
	mux.HandleFunc("wait", func(ctx context.Context, _ *asynq.Task) error {
		<-ctx.Done()
		return ctx.Err()
	})
	mux.HandleFunc("order", func(_ context.Context, task *asynq.Task) error {
		lock.Lock()
		defer lock.Unlock()
		order = append(order, string(task.Payload()))
		return nil
	})
	mux.HandleFunc("many", func(_ context.Context, task *asynq.Task) error {
		_, err := task.ResultWriter().Write(task.Payload())
		return err
	})
	config := func(queues map[string]int, workers int) asynq.Config {
		return asynq.Config{
			Concurrency: workers, Queues: queues, StrictPriority: true, LogLevel: asynq.FatalLevel,
			TaskCheckInterval: 100 * time.Millisecond, DelayedTaskCheckInterval: 100 * time.Millisecond,
			RetryDelayFunc:   func(int, error, *asynq.Task) time.Duration { return 50 * time.Millisecond },
			GroupGracePeriod: time.Second,
			GroupAggregator: asynq.GroupAggregatorFunc(func(_ string, tasks []*asynq.Task) *asynq.Task {
				return asynq.NewTask("many", []byte(fmt.Sprint(len(tasks))), asynq.TaskID("aggregated"),
					asynq.Retention(time.Minute))
			}),
		}
	}
	state := func(id, queue string) string {
		info, err := inspector.GetTaskInfo(queue, id)
		if err != nil {
			return err.Error()
		}
		return info.State.String()
	}
	for _, queue := range []string{"low", "high"} {
		for n := range 3 {
			checks.Got(client.Enqueue(asynq.NewTask("order", []byte(queue)), asynq.Queue(queue),
				asynq.TaskID(fmt.Sprint(queue, n))))
		}
	}
	first := asynq.NewServer(connection, config(map[string]int{"high": 2, "low": 1}, 1))
	checks.Must(first.Start(mux))
	checks.Until(func() bool { lock.Lock(); defer lock.Unlock(); return len(order) == 6 })
	checks.Check("a queue goes before another one", fmt.Sprint(order), "[high high high low low low]")
	first.Shutdown()

	server := asynq.NewServer(connection, config(map[string]int{"default": 1}, 10))
	checks.Must(server.Start(mux))
	ids := []string{}
	for n := range 200 {
		payload := checks.Got(json.Marshal([]int{n, n}))
		info := checks.Got(client.Enqueue(asynq.NewTask("add", payload), asynq.Retention(time.Minute)))
		ids = append(ids, info.ID)
	}
	wrong := 0
	for n, id := range ids {
		checks.Until(func() bool { return state(id, "default") == "completed" })
		if string(checks.Got(inspector.GetTaskInfo("default", id)).Result) != fmt.Sprint(2*n) {
			wrong++
		}
	}
	checks.Check("200 tasks return their results", wrong, 0)
	third := checks.Got(client.Enqueue(asynq.NewTask("third", nil), asynq.Retention(time.Minute)))
	checks.Until(func() bool { return state(third.ID, "default") == "completed" })
	checks.Check("a task is tried again", tries, 3)
	failed := checks.Got(client.Enqueue(asynq.NewTask("fail", nil)))
	checks.Check("a task that fails for good is archived",
		checks.Until(func() bool { return state(failed.ID, "default") == "archived" }), true)
	checks.Check("with its error", checks.Got(inspector.GetTaskInfo("default", failed.ID)).LastErr,
		"no: skip retry for the task")
	checks.Must(inspector.DeleteTask("default", failed.ID))
	begun := time.Now()
	later := checks.Got(client.Enqueue(asynq.NewTask("when", nil), asynq.ProcessIn(2*time.Second),
		asynq.Retention(time.Minute)))
	checks.Check("a task for later is scheduled", state(later.ID, "default"), "scheduled")
	checks.Until(func() bool { return state(later.ID, "default") == "completed" })
	// Times are kept in whole seconds.
	checks.Check("and is run when it is due", ran.Sub(begun) >= time.Second, true)
	unique := func() error {
		_, err := client.Enqueue(asynq.NewTask("when", []byte("u")), asynq.Unique(time.Minute),
			asynq.ProcessIn(time.Hour))
		return err
	}
	checks.Must(unique())
	checks.Check("a unique task is queued once", errors.Is(unique(), asynq.ErrDuplicateTask), true)
	long := checks.Got(client.Enqueue(asynq.NewTask("wait", nil), asynq.MaxRetry(0)))
	checks.Until(func() bool { return state(long.ID, "default") == "active" })
	checks.Must(inspector.CancelProcessing(long.ID))
	checks.Check("a task is cancelled over a channel",
		checks.Until(func() bool { return state(long.ID, "default") == "archived" }), true)
	for n := range 5 {
		checks.Got(client.Enqueue(asynq.NewTask("add", []byte(fmt.Sprint(n))), asynq.Group("group")))
	}
	checks.Until(func() bool { return state("aggregated", "default") == "completed" })
	checks.Check("tasks of a group become one",
		string(checks.Got(inspector.GetTaskInfo("default", "aggregated")).Result), "5")
	checks.Must(inspector.PauseQueue("default"))
	held := checks.Got(client.Enqueue(asynq.NewTask("when", nil), asynq.Retention(time.Minute)))
	checks.Check("a queue that is paused holds its tasks", state(held.ID, "default"), "pending")
	checks.Must(inspector.UnpauseQueue("default"))
	checks.Check("and goes on",
		checks.Until(func() bool { return state(held.ID, "default") == "completed" }), true)
	info := checks.Got(inspector.GetQueueInfo("default"))
	checks.Check("what a queue is", []int{info.Pending, info.Active, info.Scheduled, info.Archived},
		[]int{0, 0, 1, 1})
	checks.Check("servers are listed", len(checks.Got(inspector.Servers())), 1)
	server.Shutdown()
	checks.Check("and gone when they end", len(checks.Got(inspector.Servers())), 0)
}
