package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"plantstore/cmd/internal/witness"
)

func TestPlot(t *testing.T) {
	t.Parallel()
	second := func(n int) time.Duration { return time.Duration(n) * time.Second }
	r := &report{took: second(20), kinds: kinds(), events: events{
		history: []witness.Deletion{{Plant: 1, Answers: []witness.Answer{{Start: second(1), End: second(2), Status: 504, Code: 50400}, {Start: second(3), End: second(4), Status: 204}}}},
		tales:   []tale{{Plant: 2, Tale: []op{{Do: refer}, {Do: deleteIt, Answer: witness.Answer{Start: second(5), End: second(5), Status: 409, Code: 40900}}}}},
		faults:  []fault{{"freeze", second(1), second(3)}, {"refuse", second(2), second(4)}},
	}}
	path := filepath.Join(t.TempDir(), "chaos.svg")
	if err := r.plot(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	texts := make(map[string]bool)
	circles := 0
	for d := xml.NewDecoder(strings.NewReader(string(b))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the plot is no XML: %v", err)
		}
		if text, ok := token.(xml.CharData); ok {
			texts[strings.TrimSpace(string(text))] = true
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "path" {
			circles++
		}
	}
	for _, want := range []string{"freeze", "refuse", "deleted (204)", "504, or no answer"} {
		if !texts[want] {
			t.Errorf("the plot does not show %q", want)
		}
	}
	if texts["pg-kill"] {
		t.Error("the plot shows a fault that did not happen")
	}
	if circles < 3 {
		t.Errorf("%d paths, want at least one for each answer", circles)
	}
	if err := r.plot(filepath.Join(path, "no such folder.svg")); err == nil {
		t.Error("no error without the folder")
	}
}
