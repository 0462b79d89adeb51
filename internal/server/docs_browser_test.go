//go:build browser

package server

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// A person opens the page, authorises, deletes a plant and reads the 204.
// This needs Chromium, which .ci/docs-check installs.
func TestDocsInABrowser(t *testing.T) {
	t.Parallel()
	c, deletions := recorder()
	listener := httptest.NewServer(New(c).Public())
	t.Cleanup(listener.Close)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, // root has none
		chromedp.ExecPath("chromium-headless-shell"), chromedp.WindowSize(1200, 1600))
	limited, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	allocator, end := chromedp.NewExecAllocator(limited, options...)
	t.Cleanup(end)
	ctx, leave := chromedp.NewContext(allocator)
	t.Cleanup(leave)
	do := func(what string, steps ...chromedp.Action[chromedp.Void]) {
		t.Helper()
		if err := chromedp.Do(ctx, steps...); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	do("open", chromedp.Navigate(listener.URL+"/docs"), chromedp.WaitVisible("button.authorize"))
	servers, err := chromedp.Run(ctx, chromedp.Evaluate[int](`document.querySelectorAll(".servers, .server-variables, select#servers").length`))
	if err != nil || servers != 0 {
		t.Errorf("%d boxes ask for a server (%v), want none", servers, err)
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
	if len(deletions) != 1 {
		t.Fatal("no deletion was asked for")
	}
	if d := <-deletions; d.Plant != 42 || d.Principal != "alice" {
		t.Errorf("%v was asked for, want plant 42 by alice", d)
	}
}
