package server

import (
	"bufio"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/readme"
)

func TestREADMEHasTheCatalogue(t *testing.T) {
	t.Parallel()
	var want, got []string
	for _, r := range catalogue {
		want = append(want, strconv.Itoa(int(r.code))+" "+strconv.Itoa(r.status()))
	}
	for _, row := range readme.Table(t, "README.md", "error") {
		got = append(got, row[0]+" "+row[1])
		if len(row) != 4 || row[2] == "" {
			t.Errorf("row %q of README.md, want code, status, when, and what to do", row)
		}
	}
	if !slices.IsSorted(got) {
		t.Errorf("errors in README.md are in the order %v, want the codes sorted", got)
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("errors (-catalogue +README.md):\n%s", diff)
	}
}

// What net/http refuses before it calls us is in README.md, too.
func TestREADMEHasTheRefusalsOfNetHTTP(t *testing.T) {
	t.Parallel()
	const head = "DELETE /plants/1 HTTP/1.1\r\nHost: plants.example\r\n"
	_, sentence, _ := strings.Cut(readme.Read(t, "README.md"), "\nWhat Go's HTTP server refuses")
	sentence, _, _ = strings.Cut(sentence, "\n")
	s := start(t, testConfig())
	for raw, want := range map[string]int{
		"DELETE /plants/1 HTTP/1.1\r\n\r\n":                           400, // no Host
		head + "Content-Length: x\r\n\r\n":                            400,
		head + "Bad Name: x\r\n\r\n":                                  400,
		"nonsense\r\n\r\n":                                            400,
		head + "Expect: a miracle\r\n\r\n":                            417,
		head + "X: " + strings.Repeat("x", 2*maxHeaderBytes) + "\r\n": 431,
		head + "Transfer-Encoding: gzip\r\n\r\n":                      501,
		"DELETE /plants/1 HTTP/3.0\r\nHost: plants.example\r\n\r\n":   505,
	} {
		conn := dial(t, s.public)
		if _, err := io.WriteString(conn, raw); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%.60q: %v, want an answer", raw, err)
			continue
		}
		// 417 is answered by another part of net/http than the rest, without a body.
		plain := strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain") || want == 417 && response.ContentLength == 0
		if response.StatusCode != want || !plain || !response.Close || response.Header.Get(headerRequestID) != "" {
			t.Errorf("%.60q: %s, %q; want %d in plain text, and Connection: close", raw, response.Status, response.Header, want)
		}
		if !strings.Contains(sentence, strconv.Itoa(want)+" (") {
			t.Errorf("README.md says that Go's HTTP server refuses%s; want %d, too", sentence, want)
		}
	}
}
