package server

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"plantstore/internal/plant"
)

// FuzzRequest sends every request that net/http accepts. Every answer must be in openapi.yaml,
// none may be a 5xx, and a 204 must be for the plant, the principal and the key of the request.
// Headers are separated by newlines where there are several values.
func FuzzRequest(f *testing.F) {
	const good = "Bearer alice" + secret
	f.Add("DELETE", "/plants/1", good, "k")
	f.Add("DELETE", "/plants/%31?id=2", good+"\n"+good, `"k"`)
	f.Add("OPTIONS", "//plants/-1/", "Basic x", "é\nb")
	f.Add("HEAD", "/docs/start.js", "", "")

	var got *plant.Deletion
	c := testConfig()
	c.Plants = fakePlants(func(_ context.Context, d plant.Deletion) (plant.Result, error) {
		got = &d
		return plant.Result{}, nil
	})
	s := New(c)
	f.Fuzz(func(t *testing.T, method, target, authorization, key string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(method + " " + target + " HTTP/1.1\r\nHost: plants.example\r\n\r\n")))
		if err != nil {
			t.Skip() // net/http answers 400 itself
		}
		for name, value := range map[string]string{"Authorization": authorization, headerIdempotencyKey: key} {
			if value != "" {
				r.Header[name] = strings.Split(value, "\n")
			}
		}
		got = nil
		a := s.answer(t, r, target)
		if a.status >= 500 || (a.status == http.StatusNoContent) != (got != nil) {
			t.Errorf("status %d with deletion %+v, want no 5xx, and 204 with a deletion only", a.status, got)
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
		if key != "" && key != got.Key && key != `"`+got.Key+`"` {
			t.Errorf("Idempotency-Key %q became %q", key, got.Key)
		}
	})
}
