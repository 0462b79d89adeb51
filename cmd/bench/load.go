//go:build linux

package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os/exec"
	"time"
)

//go:embed load.lua
var script []byte

// A load is a measurement of wrk.
type load struct {
	Requests, Microseconds, P50, P99 int64
	Refused, Broken                  int64 // answers from 400 on; requests without an answer
}

// A walk is an order of plants: first, first + step and so on, modulo plants.
type walk struct{ first, step int64 }

// wrk deletes plants with a number of clients. One thread of wrk serves them all: it is faster
// than any contender, and a second would take processor time from them.
func (b *bench) wrk(ctx context.Context, address, token string, w walk, clients int, d time.Duration) (l load, err error) {
	out, err := exec.CommandContext(ctx, "wrk", "-t1", fmt.Sprintf("-c%d", clients), fmt.Sprintf("-d%ds", int(d.Seconds())), "--timeout", "15s",
		"-s", b.script, "http://"+address, "--", token, fmt.Sprint(w.first), fmt.Sprint(w.step), fmt.Sprint(plants)).Output()
	if err == nil {
		out = bytes.TrimSpace(out)
		err = json.Unmarshal(out[bytes.LastIndexByte(out, '\n')+1:], &l)
	}
	if err != nil {
		return l, fmt.Errorf("wrk: %w: %s", err, out)
	}
	return l, nil
}

// deletedOf returns how many plants a load deleted. If every is not 0, the server has to refuse
// one plant in so many. Each client may have a request in flight at the end, which the load
// leaves out.
func deletedOf(l load, every, gone, clients int64) (int64, error) {
	deleted, slack, referred := l.Requests-l.Refused, clients+2, int64(0)
	if every > 0 {
		referred = l.Requests / every
	}
	switch {
	case l.Broken > 0:
		return 0, fmt.Errorf("%d requests without an answer", l.Broken)
	case deleted <= 0, every == 0 && l.Refused > 0, max(l.Refused-referred, referred-l.Refused) > slack:
		return 0, fmt.Errorf("%d of %d answers were errors, want %d", l.Refused, l.Requests, referred)
	case gone < deleted || gone > deleted+slack:
		return 0, fmt.Errorf("%d deletions were reported, but %d plants are gone", deleted, gone)
	}
	return deleted, nil
}
