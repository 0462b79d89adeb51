package server

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCORS(t *testing.T) {
	t.Parallel()
	const ours, foreign, deleting = "Origin: https://shop.example", "Origin: https://shop.example.evil.example", "Access-Control-Request-Method: DELETE"
	c := testConfig()
	c.CORSOrigins = []string{"https://shop.example"}
	s, off := New(c), New(testConfig())
	before := samples(t, s, "plantstore_")
	preflight := http.Header{"Access-Control-Allow-Headers": {"Authorization,Idempotency-Key,X-Request-Id,Content-Type"}, "Access-Control-Allow-Methods": {"DELETE"},
		"Access-Control-Allow-Origin": {"https://shop.example"}, "Access-Control-Max-Age": {"600"},
		"Vary": {"Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers"}}
	readable := http.Header{"Access-Control-Allow-Origin": {"https://shop.example"},
		"Access-Control-Expose-Headers": {"X-Request-Id,Idempotency-Key,Idempotency-Replayed,Retry-After,WWW-Authenticate"}, "Vary": {"Origin"}}
	vary, none := http.Header{"Vary": {"Origin"}}, http.Header{}
	for _, tt := range []struct {
		s              *Server
		method, target string
		headers        []string
		status         int
		want           http.Header // of CORS
	}{
		{s, "OPTIONS", "/plants/1", []string{ours, deleting, "Access-Control-Request-Headers: authorization"}, 204, preflight},
		{s, "OPTIONS", "/nowhere", []string{ours, deleting}, 204, preflight}, // the page can then read the 404
		{s, "OPTIONS", "/plants/1", []string{foreign, deleting}, 405, none},
		{s, "OPTIONS", "/plants/1", []string{ours}, 405, none},
		{s, "OPTIONS", "/plants/1", []string{deleting}, 405, none},
		{s, "OPTIONS", "/nowhere", []string{foreign, deleting}, 404, none},
		{off, "OPTIONS", "/plants/1", []string{ours, deleting}, 405, none},
		{s, "DELETE", "/plants/1", []string{ours, asAlice}, 204, readable},
		{s, "DELETE", "/plants/1", []string{ours}, 401, readable},
		{s, "DELETE", "/plants/1", []string{foreign, asAlice}, 204, vary},
		{s, "DELETE", "/plants/1", []string{asAlice}, 204, vary},
		{off, "DELETE", "/plants/1", []string{ours, asAlice}, 204, none},
	} {
		w := httptest.NewRecorder()
		tt.s.Public().ServeHTTP(w, request{method: tt.method, target: tt.target, headers: tt.headers}.http(t))
		got := w.Result().Header
		maps.DeleteFunc(got, func(name string, _ []string) bool {
			return name != "Vary" && !strings.HasPrefix(name, "Access-Control-")
		})
		what := fmt.Sprintf("%s %s with %q", tt.method, tt.target, tt.headers)
		if w.Code != tt.status || w.Header().Get(headerRequestID) == "" {
			t.Errorf("%s: got %d with X-Request-Id %q, want %d with one", what, w.Code, w.Header().Get(headerRequestID), tt.status)
		}
		if allow := w.Header().Get("Allow"); tt.status == 405 && allow != "DELETE" {
			t.Errorf("%s: got Allow %q, want DELETE", what, allow)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: headers (-want +got):\n%s", what, diff)
		}
	}
	s.wantSeries(t, before)
	// A preflight is no deletion.
	want := []string{`plantstore_http_requests_total{error="0",route="/plants/:id",status="204"} 3`, `plantstore_http_requests_total{error="0",route="preflight",status="204"} 2`}
	got := slices.DeleteFunc(counted(t, s, "plantstore_http_requests_total"), func(line string) bool { return !strings.Contains(line, `status="204"`) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}
