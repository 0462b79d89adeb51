package server

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDocsLoadOwnFilesOnly(t *testing.T) {
	t.Parallel()
	s := New(testConfig())
	page, described := s.ask(t, request{method: "GET", target: "/docs"}), s.ask(t, request{method: "GET", target: "/openapi.yaml"})
	if got := described.header.Get("Content-Type"); got != "application/yaml" || !bytes.Equal(described.body, openAPI) {
		t.Errorf("/openapi.yaml: Content-Type %q and %d bytes, want application/yaml and the %d of the file", got, len(described.body), len(openAPI))
	}
	if got := page.header.Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; ") {
		t.Errorf("the page has Content-Security-Policy %q, want nothing but files of this host", got)
	}
	loaded := make(map[string]string)
	for _, match := range regexp.MustCompile(`(?:src|href)="docs/([^"]*)"`).FindAllSubmatch(page.body, -1) {
		name := string(match[1])
		a := s.ask(t, request{method: "GET", target: "/docs/" + name})
		loaded[name] = fmt.Sprint(a.status, " ", http.DetectContentType(a.body), " as ", a.header.Get("Content-Type"), " ", a.header.Get("Content-Encoding"), " ", a.header.Get("X-Content-Type-Options"))
	}
	want := map[string]string{
		"start.js":             "200 text/plain; charset=utf-8 as text/javascript; charset=utf-8  nosniff",
		"swagger-ui-bundle.js": "200 application/x-gzip as text/javascript; charset=utf-8 gzip nosniff",
		"swagger-ui.css":       "200 application/x-gzip as text/css; charset=utf-8 gzip nosniff",
		"favicon-32x32.png":    "200 image/png as image/png  nosniff",
	}
	if diff := cmp.Diff(want, loaded); diff != "" {
		t.Errorf("files of the page (-want +got):\n%s", diff)
	}
}
