// Package checks is how the Go programs of this folder say what holds: a line for each check.
package checks

import (
	"fmt"
	"os"
	"reflect"
	"time"
)

// Password and Address are the server's.
var (
	Password = os.Getenv("SERVER_PASSWORD")
	Address  = os.Getenv("SERVER_HOST") + ":" + os.Getenv("SERVER_PORT")
	URL      = os.Getenv("SERVER_URL")
)

// Check says whether two values are the same.
func Check(name string, found, wanted any) {
	if reflect.DeepEqual(found, wanted) {
		fmt.Println("ok", name)
	} else {
		fmt.Printf("not ok %s: %v and not %v\n", name, found, wanted)
	}
}

// Must ends the program with an error.
func Must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Got returns a value that came without an error.
func Got[T any](value T, err error) T {
	Must(err)
	return value
}

// Until says whether a condition has become true within half a minute.
func Until(condition func() bool) bool {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if condition() {
			return true
		}
	}
	return condition()
}

// Got2 returns two values that came without an error.
func Got2[T, U any](one T, other U, err error) (T, U) {
	Must(err)
	return one, other
}
