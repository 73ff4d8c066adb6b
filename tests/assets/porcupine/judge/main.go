// Judge: says whether a history of operations on documents is linearizable, by Porcupine.
//
// Standard input has one operation a line, in JSON.  Every key is a register of its own with a version number (seqno);
// 0 stands for no document.  The register changes by put and delete, each with an optional condition on the version.
// An operation whose outcome nobody knows has no end: it may take effect at any time behind its call, or never.
// Standard output has one JSON object: result (Ok, Illegal or Unknown), operations, keys, and the keys that are not Ok.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

var version = "unknown"

const (
	patience    = 120 * time.Second // for one key
	patienceAll = 400 * time.Second // for all keys together; the caller waits a little longer
)

type operation struct {
	Client   int    `json:"client"`
	Key      string `json:"key"`
	Kind     string `json:"kind"`     // read, put or delete
	Value    string `json:"value"`    // put: of its own; read: as found
	Expected int64  `json:"expected"` // the condition, -1: none
	Outcome  string `json:"outcome"`  // applied, refused or unknown; of a read: read
	Seqno    int64  `json:"seqno"`    // applied: of this write; read: as found
	Found    int64  `json:"found"`    // applied: the version replaced; refused: the version found
	Call     int64  `json:"call"`     // in nanoseconds
	Return   int64  `json:"return"`
}

// register is the state of a key.  A put whose answer nobody heard has the seqno that a read showed for its value, else
// minus one minus its place in the history.
type register struct {
	seqno int64
	value string
}

func (r register) matches(seqno int64, known map[int64]bool) bool {
	if r.seqno >= 0 {
		return r.seqno == seqno
	}
	return seqno > 0 && !known[seqno] // a seqno that belongs to no other write
}

func model(known map[int64]bool) porcupine.Model {
	return porcupine.Model{
		Init:  func() interface{} { return register{} },
		Equal: func(a, b interface{}) bool { return a == b },
		Step: func(state, input, output interface{}) (bool, interface{}) {
			at, op := state.(register), input.(operation)
			written := register{}
			if op.Kind == "put" {
				written = register{op.Seqno, op.Value}
			}
			switch op.Outcome {
			case "read":
				if op.Seqno == 0 {
					return at.seqno == 0, at
				}
				return at.value == op.Value && at.matches(op.Seqno, known), at
			case "applied":
				if op.Expected >= 0 && op.Expected != op.Found {
					return false, at
				}
				return at.matches(op.Found, known) && op.Seqno > at.seqno, written
			case "refused":
				return op.Expected != op.Found && at.matches(op.Found, known), at
			default:
				if op.Expected >= 0 && !at.matches(op.Expected, known) {
					return true, at
				}
				return true, written
			}
		},
		DescribeOperation: func(input, output interface{}) string { return fmt.Sprintf("%+v", input) },
	}
}

func histories(all []operation) (map[string][]porcupine.Operation, map[string]map[int64]bool) {
	seqnos := map[string]int64{} // by key and value
	known := map[string]map[int64]bool{}
	for _, op := range all {
		if known[op.Key] == nil {
			known[op.Key] = map[int64]bool{}
		}
		if (op.Outcome == "read" && op.Seqno > 0) || (op.Outcome == "applied" && op.Kind == "put") {
			seqnos[op.Key+"\x00"+op.Value] = op.Seqno
			known[op.Key][op.Seqno] = true
		}
	}
	result := map[string][]porcupine.Operation{}
	for place, op := range all {
		if op.Outcome == "unknown" {
			op.Return = math.MaxInt64
			if op.Kind == "put" {
				op.Seqno = seqnos[op.Key+"\x00"+op.Value]
				if op.Seqno == 0 {
					op.Seqno = int64(-1 - place)
				}
			}
		}
		result[op.Key] = append(result[op.Key], porcupine.Operation{
			ClientId: op.Client, Input: op, Call: op.Call, Output: nil, Return: op.Return,
		})
	}
	return result, known
}

func main() {
	if len(os.Args) > 1 {
		fmt.Println(version)
		return
	}
	var all []operation
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var op operation
		if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
			fmt.Fprintf(os.Stderr, "line %d: %v\n", len(all)+1, err)
			os.Exit(2)
		}
		all = append(all, op)
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	byKey, known := histories(all)
	verdict, wrong := porcupine.Ok, []string{}
	deadline := time.Now().Add(patienceAll)
	for key, history := range byKey {
		left := max(min(patience, time.Until(deadline)), time.Millisecond) // zero would be no limit
		switch result := porcupine.CheckOperationsTimeout(model(known[key]), history, left); result {
		case porcupine.Ok:
		case porcupine.Illegal:
			verdict, wrong = result, append(wrong, key)
		default:
			if verdict == porcupine.Ok {
				verdict = result
			}
			wrong = append(wrong, key)
		}
	}
	sort.Strings(wrong)
	answer := map[string]interface{}{
		"result": string(verdict), "operations": len(all), "keys": len(byKey), "wrong": wrong}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		os.Exit(2)
	}
}
