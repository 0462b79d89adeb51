//go:build browser

package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

// browser starts Chromium, until the test is over.
func browser(t *testing.T) context.Context {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, // root has none
		chromedp.ExecPath("chromium-headless-shell"), chromedp.WindowSize(1200, 1600))
	limited, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	allocator, end := chromedp.NewExecAllocator(limited, options...)
	t.Cleanup(end)
	ctx, leave := chromedp.NewContext(allocator)
	t.Cleanup(leave)
	return ctx
}

// A page of an allowed origin deletes plants and reads the answers' headers; another
// origin's can do neither.
func TestCORSInABrowser(t *testing.T) {
	t.Parallel()
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "<title>back office</title>")
	})
	allowed, foreign := httptest.NewServer(page), httptest.NewServer(page)
	t.Cleanup(allowed.Close)
	t.Cleanup(foreign.Close)
	c := testConfig()
	c.CORSOrigins = []string{allowed.URL}
	deletions := make(chan plant.Deletion, 10)
	c.Plants = fakePlants(func(_ context.Context, d plant.Deletion) (plant.Result, error) {
		deletions <- d
		return plant.Result{Replayed: true}, nil
	})
	service := httptest.NewServer(New(c).Public())
	t.Cleanup(service.Close)
	ctx := browser(t)
	for _, tt := range []struct{ page, token, want string }{
		{allowed.URL, "alice" + secret, "204 r1 true null"},
		{allowed.URL, "mallory", `401 r1 null Bearer realm="plantstore", error="invalid_token"`},
		{foreign.URL, "alice" + secret, "TypeError: Failed to fetch"},
	} {
		script := fmt.Sprintf(`fetch(%q, {method: "DELETE", headers: {"Authorization": "Bearer %s", "Idempotency-Key": "k1", "X-Request-Id": "r1"}})
			.then(a => [a.status, ...["X-Request-Id", "Idempotency-Replayed", "WWW-Authenticate"].map(name => a.headers.get(name) ?? "null")].join(" "), String)`,
			service.URL+"/plants/42", tt.token)
		if err := chromedp.Do(ctx, chromedp.Navigate(tt.page)); err != nil {
			t.Fatal(err)
		}
		got, err := chromedp.Run(ctx, chromedp.Evaluate[string](script, chromedp.EvalAwaitPromise))
		if err != nil || got != tt.want {
			t.Errorf("a page of %s with token %s: got %q (%v), want %q", tt.page, tt.token, got, err, tt.want)
		}
	}
	if got := len(deletions); got != 1 {
		t.Errorf("%d deletions, want 1", got)
	}
}

// A person opens the page, authorises, deletes a plant and reads the 204.
// PLANTSTORE_TEST_SCREENSHOT names a file for a picture of it. This needs Chromium, which
// .ci/docs-check installs.
func TestDocsInABrowser(t *testing.T) {
	t.Parallel()
	c := testConfig()
	c.JWTs = fakeTokens(func(context.Context, string) (auth.Principal, error) { return auth.Principal{}, auth.ErrInvalidToken })
	deleted := make(chan plant.Deletion, 1)
	c.Plants = fakePlants(func(_ context.Context, d plant.Deletion) (plant.Result, error) {
		deleted <- d
		return plant.Result{}, nil
	})
	listener := httptest.NewServer(New(c).Public())
	t.Cleanup(listener.Close)
	ctx := browser(t)
	do := func(what string, steps ...chromedp.Action[chromedp.Void]) {
		t.Helper()
		if err := chromedp.Do(ctx, steps...); err != nil {
			picture(t, ctx)
			t.Fatalf("%s: %v", what, err)
		}
	}
	do("open", chromedp.Navigate(listener.URL+"/docs"), chromedp.WaitVisible("button.authorize"))
	servers, err := chromedp.Run(ctx, chromedp.Evaluate[int](`document.querySelectorAll(".servers, .server-variables, select#servers").length`))
	if err != nil || servers != 0 {
		t.Errorf("%d boxes ask for a server (%v), want none", servers, err)
	}
	operations, err := chromedp.Run(ctx, chromedp.Evaluate[int](`document.querySelectorAll(".opblock").length`))
	if err != nil || operations != 1 {
		t.Errorf("%d operations are shown (%v), want one", operations, err)
	}
	do("authorise", chromedp.Click("button.authorize"),
		chromedp.WaitVisible(".auth-container input"),
		chromedp.SendKeys(".auth-container input", strings.TrimPrefix(asAlice, "Authorization: Bearer ")),
		chromedp.Click(".auth-container button.authorize"),
		chromedp.WaitVisible(".auth-container button.btn-done"),
		chromedp.Click(".auth-container button.btn-done"))
	do("execute", chromedp.Click("button.try-out__btn"),
		chromedp.WaitVisible(`tr[data-param-name="id"] input`),
		chromedp.Clear(`tr[data-param-name="id"] input`),
		chromedp.SendKeys(`tr[data-param-name="id"] input`, "42"),
		chromedp.Click("button.execute"),
		chromedp.WaitVisible(".live-responses-table .response-col_status"))
	status, err := chromedp.Run(ctx, chromedp.Text(".live-responses-table tbody .response-col_status"))
	if err != nil || !strings.HasPrefix(strings.TrimSpace(status), "204") {
		t.Errorf("the page shows status %q (%v), want 204", status, err)
	}
	picture(t, ctx)
	select {
	case d := <-deleted:
		if d.Plant != 42 || d.Principal != "alice" {
			t.Errorf("%v was asked for, want plant 42 by alice", d)
		}
	default:
		t.Error("no deletion was asked for")
	}
}

// picture takes one of the page, if somebody wants it.
func picture(t *testing.T, ctx context.Context) {
	t.Helper()
	file := os.Getenv("PLANTSTORE_TEST_SCREENSHOT")
	if file == "" {
		return
	}
	image, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		t.Errorf("picture: %v", err)
		return
	}
	if err := os.WriteFile(file, image, 0o600); err != nil {
		t.Error(err)
	}
}
