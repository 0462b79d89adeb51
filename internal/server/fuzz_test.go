package server

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"plantstore/internal/plant"
)

// FuzzRequest sends every request that net/http accepts. Every answer must be in
// openapi.yaml, none may be a 5xx, and a 204 must be for a well-formed request
// that reached the repository as it was meant. Headers are separated by newlines
// where there are several values.
func FuzzRequest(f *testing.F) {
	const auth = "Bearer alice" + secret
	for _, target := range []string{
		"/plants/1", "/plants/-1", "/plants/0", "/plants/9223372036854775808", "/plants/+1", "/plants/01", "/plants/-0",
		"/plants/1.0", "/plants/0x1", "/plants/%31", "/plants/1/", "/plants/", "/plants", "/plants/%00", "/plants/%20", "/plants/١",
		"/plants/1?id=2", "//plants/1", "/plants/../1", "/", "*", "http://x/plants/1", "/openapi.yaml", "/docs", "/docs/start.js",
		"/docs/x", "/plants/2", "/plants/3", "/plants/4",
	} {
		for _, method := range []string{"DELETE", "GET", "OPTIONS", "MADE-UP"} {
			f.Add(method, target, auth, "", "")
		}
	}
	for _, a := range []string{"", "Bearer", "Bearer x", "Basic x", auth + "\n" + auth, "Bearer bob" + secret, "Bearer\x00", " "} {
		f.Add("DELETE", "/plants/1", a, "k", "r")
	}
	for _, key := range []string{"k", `"k"`, `""`, `"`, "a b", "a\nb", "é", "\x7f", strings.Repeat("k", 256)} {
		f.Add("DELETE", "/plants/1", auth, key, key)
	}

	var got *plant.Deletion
	c := testConfig()
	c.Plants = fakePlants(func(_ context.Context, d plant.Deletion) (plant.Result, error) {
		got = &d
		outcomes := []error{nil, plant.ErrNotFound, &plant.DeletedEarlierError{At: time.Now()}, &plant.ReferencedError{Table: "order_items"}}
		return plant.Result{}, outcomes[uint64(d.Plant-1)%4]
	})
	public := New(c).Public()
	f.Fuzz(func(t *testing.T, method, target, authorization, key, requestID string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(method + " " + target + " HTTP/1.1\r\nHost: plants.example\r\n\r\n")))
		if err != nil {
			t.Skip() // net/http answers 400 itself
		}
		for name, value := range map[string]string{"Authorization": authorization, headerIdempotencyKey: key, headerRequestID: requestID} {
			if value != "" {
				r.Header[name] = strings.Split(value, "\n")
			}
		}
		got = nil
		w := httptest.NewRecorder()
		public.ServeHTTP(w, r)
		body := w.Body.Bytes()
		if method == http.MethodHead {
			body = nil // as net/http does
		}
		checkAnswer(t, r.Method, target, w.Code, w.Result().Header, body)
		if w.Code >= 500 {
			t.Errorf("status %d, want none of ours", w.Code)
		}
		if (w.Code == http.StatusNoContent) != (got != nil && got.Plant%4 == 1) {
			t.Errorf("status %d, but deletion %+v", w.Code, got)
		}
		if got == nil {
			return
		}
		if path := fmt.Sprintf("/plants/%d", got.Plant); r.Method != http.MethodDelete || r.URL.EscapedPath() != path {
			t.Errorf("%s %s deleted %s", method, target, path)
		}
		if !strings.HasSuffix(authorization, " alice"+secret) {
			t.Errorf("Authorization %q deleted as %s", authorization, got.Principal)
		}
		if key != "" && key != got.Key && key != `"`+got.Key+`"` || !isKey(got.Key) {
			t.Errorf("Idempotency-Key %q became %q", key, got.Key)
		}
		if got.RequestID != w.Result().Header.Get(headerRequestID) || !isRequestID(got.RequestID) {
			t.Errorf("X-Request-Id %q became %q", requestID, got.RequestID)
		}
	})
}

// isKey reports whether the ledger may get this key.
func isKey(s string) bool {
	visible := func(r rune) bool { return '!' <= r && r <= '~' }
	return len(s) >= 1 && len(s) <= 255 && strings.TrimFunc(s, visible) == ""
}
