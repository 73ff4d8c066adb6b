// natsload publishes records to a JetStream stream for some seconds and counts what the stream's leader acknowledged.
//
// It reads one JSON object from its command line and prints one JSON object.  A record counts when its acknowledgement
// has arrived.  Two ways: "async" is PublishAsync of the Go client, one acknowledgement for each message; "fast" is the
// fast-ingest publisher, one acknowledgement for many messages.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"
)

var version = "unknown" // of the client library, set by the linker

type arguments struct {
	Ports       map[string]int `json:"ports"` // by server name
	Way         string         `json:"way"`
	RecordBytes int            `json:"record_bytes"`
	Publishers  int            `json:"publishers"` // connections, each with a goroutine of its own
	InFlight    int            `json:"in_flight"`  // unacknowledged messages of each publisher, at most
	WarmSeconds float64        `json:"warm_seconds"`
	Seconds     float64        `json:"seconds"`
}

type result struct {
	RecordsPerSecond float64 `json:"records_per_second"`
	Seconds          float64 `json:"seconds"`
	CPUSeconds       float64 `json:"cpu_seconds"`
	Leader           string  `json:"leader"`
}

const (
	stream        = "bench"
	flow          = 200 // messages for one acknowledgement of the fast-ingest publisher
	createSeconds = 60
)

func main() {
	if len(os.Args) != 2 {
		fail(errors.New("natsload wants one JSON object or --version"))
	}
	if os.Args[1] == "--version" {
		fmt.Println("natsload with nats.go", version)
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
	fmt.Fprintln(os.Stderr, "natsload:", err)
	os.Exit(1)
}

func load(given arguments) (result, error) {
	leader, stored, err := create(given.Ports)
	if err != nil {
		return result{}, err
	}
	var acknowledged atomic.Int64
	stopped := make(chan struct{})
	ended := make(chan error, given.Publishers)
	for range given.Publishers {
		connection, err := nats.Connect(address(given.Ports[leader]))
		if err != nil {
			return result{}, err
		}
		defer connection.Close()
		js, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(given.InFlight))
		if err != nil {
			return result{}, err
		}
		publish := async
		if given.Way == "fast" {
			publish = fast
		}
		record := make([]byte, given.RecordBytes)
		rand.Read(record)
		go func() { ended <- publish(js, record, given.InFlight, &acknowledged, stopped) }()
	}
	if err := pause(given.WarmSeconds, ended); err != nil {
		return result{}, err
	}
	before, used, began := acknowledged.Load(), processor(), time.Now()
	if err := pause(given.Seconds, ended); err != nil {
		return result{}, err
	}
	took := time.Since(began).Seconds()
	count := acknowledged.Load() - before
	cpu := processor() - used
	close(stopped)
	total := uint64(acknowledged.Load())
	if _, now, err := create(given.Ports); err != nil {
		return result{}, err
	} else if now-stored < total {
		return result{}, fmt.Errorf("%d messages were acknowledged and the stream has %d more", total, now-stored)
	}
	return result{float64(count) / took, took, cpu, leader}, nil
}

// pause waits; a publisher that ends meanwhile has failed.
func pause(seconds float64, ended chan error) error {
	select {
	case err := <-ended:
		return fmt.Errorf("a publisher ended: %w", err)
	case <-time.After(time.Duration(seconds * float64(time.Second))):
		return nil
	}
}

// async publishes message by message; the client bounds how many of them are unacknowledged.
func async(
	js jetstream.JetStream, record []byte, inFlight int, acknowledged *atomic.Int64, stopped chan struct{},
) error {
	waiting := make(chan jetstream.PubAckFuture, inFlight+1)
	failed := make(chan error, 1)
	go func() {
		for future := range waiting {
			select {
			case <-future.Ok():
				acknowledged.Add(1)
			case err := <-future.Err():
				failed <- err
				return
			}
		}
	}()
	for {
		select {
		case <-stopped:
			return nil
		case err := <-failed:
			return err
		default:
		}
		future, err := js.PublishAsync(stream, record, jetstream.WithStallWait(30*time.Second))
		if err != nil {
			return err
		}
		select {
		case waiting <- future:
		case err := <-failed:
			return err
		}
	}
}

// fast publishes through one batch without an end; the server acknowledges up to a sequence.
func fast(
	js jetstream.JetStream, record []byte, inFlight int, acknowledged *atomic.Int64, stopped chan struct{},
) error {
	publisher, err := jetstreamext.NewFastPublisher(js, jetstreamext.FastPublishFlowControl{
		Flow: flow, MaxOutstandingAcks: uint16(max(1, inFlight/flow)), AckTimeout: 30 * time.Second,
	})
	if err != nil {
		return err
	}
	var known uint64
	for {
		select {
		case <-stopped:
			return nil
		default:
		}
		ack, err := publisher.Add(stream, record)
		if err != nil {
			return err
		}
		if ack.AckSequence > known {
			acknowledged.Add(int64(ack.AckSequence - known))
			known = ack.AckSequence
		}
	}
}

// create makes the stream of three replicas and returns the server that leads it and the number of its messages, once
// every replica is current; a stream that is there already stays.
func create(ports map[string]int) (string, uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), createSeconds*time.Second)
	defer cancel()
	var first int
	for _, port := range ports {
		first = port
	}
	connection, err := nats.Connect(address(first))
	if err != nil {
		return "", 0, err
	}
	defer connection.Close()
	js, err := jetstream.New(connection)
	if err != nil {
		return "", 0, err
	}
	wanted := jetstream.StreamConfig{
		Name: stream, Subjects: []string{stream}, Replicas: 3, Storage: jetstream.FileStorage, MaxBytes: 16 << 30,
		AllowBatchPublish: true,
	}
	for {
		attempt, over := context.WithTimeout(ctx, 3*time.Second) // a server without a leader answers nothing
		leader, stored, err := settled(attempt, js, wanted)
		over()
		if err == nil {
			return leader, stored, nil
		}
		select {
		case <-ctx.Done():
			return "", 0, fmt.Errorf("the stream is not there after %d s: %w", createSeconds, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func settled(ctx context.Context, js jetstream.JetStream, wanted jetstream.StreamConfig) (string, uint64, error) {
	made, err := js.CreateOrUpdateStream(ctx, wanted)
	if err != nil {
		return "", 0, err
	}
	info, err := made.Info(ctx)
	if err != nil {
		return "", 0, err
	}
	if info.Cluster == nil || info.Cluster.Leader == "" || len(info.Cluster.Replicas) != 2 {
		return "", 0, errors.New("no leader with two replicas")
	}
	for _, replica := range info.Cluster.Replicas {
		if !replica.Current {
			return "", 0, fmt.Errorf("replica %s is not current", replica.Name)
		}
	}
	return info.Cluster.Leader, info.State.Msgs, nil
}

func address(port int) string { return fmt.Sprintf("nats://127.0.0.1:%d", port) }

// processor returns what this process has used so far, in seconds.
func processor() float64 {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}
