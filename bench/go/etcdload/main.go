// etcdload puts values into etcd for some seconds and prints the time of each transaction.
//
// It reads one JSON object from its command line and prints one JSON object.  Each of `clients` clients has a
// connection of its own to the leader and `tasks` goroutines; each goroutine has one transaction under way.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

var version = "unknown" // of the client library, set by the linker

type arguments struct {
	Endpoints   []string `json:"endpoints"`
	Clients     int      `json:"clients"`
	Tasks       int      `json:"tasks"`
	Puts        int      `json:"puts"` // of one transaction; 1 is a plain put
	ValueBytes  int      `json:"value_bytes"`
	Prefix      string   `json:"prefix"` // of the keys; every put has a key of its own, as every record has an offset
	WarmSeconds float64  `json:"warm_seconds"`
	Seconds     float64  `json:"seconds"`
}

type result struct {
	TimesMs    []float64 `json:"times_ms"`
	Seconds    float64   `json:"seconds"`
	CPUSeconds float64   `json:"cpu_seconds"`
	Version    string    `json:"version"` // of the server that leads
}

func main() {
	if len(os.Args) != 2 {
		fail(errors.New("etcdload wants one JSON object or --version"))
	}
	if os.Args[1] == "--version" {
		fmt.Println("etcdload with client", version)
		return
	}
	var given arguments
	if err := json.Unmarshal([]byte(os.Args[1]), &given); err != nil {
		fail(err)
	}
	found, err := load(given)
	if err != nil {
		fail(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "etcdload:", err)
	os.Exit(1)
}

func load(given arguments) (result, error) {
	leader, version, err := find(given.Endpoints)
	if err != nil {
		return result{}, err
	}
	value := make([]byte, given.ValueBytes)
	rand.Read(value)
	var writers []*writer
	for client := range given.Clients {
		opened, err := clientv3.New(clientv3.Config{Endpoints: []string{leader}, DialTimeout: 10 * time.Second})
		if err != nil {
			return result{}, err
		}
		defer opened.Close()
		for task := range given.Tasks {
			name := fmt.Sprintf("%s/%d/%d/", given.Prefix, client, task)
			writers = append(writers, &writer{client: opened, name: name, value: string(value), puts: given.Puts})
		}
	}
	if _, err := everybody(writers, given.WarmSeconds); err != nil {
		return result{}, err
	}
	used, began := processor(), time.Now()
	times, err := everybody(writers, given.Seconds)
	if err != nil {
		return result{}, err
	}
	return result{times, time.Since(began).Seconds(), processor() - used, version}, nil
}

type writer struct {
	client  *clientv3.Client
	name    string
	value   string
	puts    int
	written int
}

// run writes until the time is over and returns milliseconds.
func (w *writer) run(until time.Time) ([]float64, error) {
	var times []float64
	for {
		began := time.Now()
		if !began.Before(until) {
			return times, nil
		}
		if err := w.write(); err != nil {
			return nil, err
		}
		times = append(times, float64(time.Since(began).Nanoseconds())/1e6)
	}
}

func (w *writer) write() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if w.puts == 1 {
		_, err := w.client.Put(ctx, w.key(), w.value)
		return err
	}
	puts := make([]clientv3.Op, w.puts)
	for at := range puts {
		puts[at] = clientv3.OpPut(w.key(), w.value)
	}
	done, err := w.client.Txn(ctx).Then(puts...).Commit()
	if err == nil && !done.Succeeded {
		err = errors.New("a transaction without a condition did not succeed")
	}
	return err
}

func (w *writer) key() string {
	w.written++
	return fmt.Sprintf("%s%010d", w.name, w.written)
}

// everybody runs all writers for so many seconds and returns all their times.
func everybody(writers []*writer, seconds float64) ([]float64, error) {
	until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	var lock sync.Mutex
	var all []float64
	var failed error
	var waiting sync.WaitGroup
	for _, one := range writers {
		waiting.Go(func() {
			times, err := one.run(until)
			lock.Lock()
			defer lock.Unlock()
			all = append(all, times...)
			if err != nil {
				failed = err
			}
		})
	}
	waiting.Wait()
	return all, failed
}

// find returns the endpoint of the leader, so that no follower has to pass requests on, and the leader's version.
// Members that still start refuse: its client logs nothing.
func find(endpoints []string) (string, string, error) {
	opened, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return "", "", err
	}
	defer opened.Close()
	until := time.Now().Add(60 * time.Second)
	for time.Now().Before(until) {
		for _, endpoint := range endpoints {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			status, err := opened.Status(ctx, endpoint)
			cancel()
			if err == nil && status.Leader != 0 && status.Header.MemberId == status.Leader {
				return endpoint, status.Version, nil
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return "", "", errors.New("etcd has no leader after 60 s")
}

// processor returns what this process has used so far, in seconds.
func processor() float64 {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}
