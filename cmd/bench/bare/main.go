// Command bare is the benchmark's yardstick: deleting a plant the way it is
// usually written with Echo and pgx, one statement on one connection for each
// request. It authenticates nobody, records nothing and answers 204 whether
// there was a plant or not.
//
// It takes DATABASE_URL and ADDR from its environment. With SETTINGS=yes each
// DELETE brings along, in the same round trip, the settings that the ledger's
// trigger records. With SETTINGS=nothing it is a server of net/http, without Echo and
// database.
package main

import (
	"context"
	"expvar"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"
)

func main() {
	if os.Getenv("SETTINGS") == "nothing" {
		log.Fatal(http.ListenAndServe(os.Getenv("ADDR"), http.HandlerFunc(answer)))
	}
	pool, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	remove := removePlain
	if os.Getenv("SETTINGS") == "yes" {
		remove = removeWithSettings
	}
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.GET("/debug/vars", echo.WrapHandler(expvar.Handler())) // the benchmark reads how much is allocated
	e.DELETE("/plants/:id", func(c echo.Context) error {
		id, err := strconv.ParseInt(c.Param("id"), 10, 64)
		if err != nil {
			return echo.NewHTTPError(http.StatusBadRequest, "not an id")
		}
		if err := remove(c.Request().Context(), pool, id); err != nil {
			return err
		}
		return c.NoContent(http.StatusNoContent)
	})
	log.Fatal(e.Start(os.Getenv("ADDR")))
}

// answer answers a moment later, and does nothing.
func answer(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/debug/vars" {
		expvar.Handler().ServeHTTP(w, r)
		return
	}
	time.Sleep(50 * time.Millisecond)
	w.WriteHeader(http.StatusNoContent)
}

func removePlain(ctx context.Context, pool *pgxpool.Pool, id int64) error {
	_, err := pool.Exec(ctx, `DELETE FROM plants WHERE id = $1`, id)
	return err
}

func removeWithSettings(ctx context.Context, pool *pgxpool.Pool, id int64) error {
	var batch pgx.Batch
	batch.Queue(`SELECT set_config('plantstore.request', '{NULL,bare,none}', true)`)
	batch.Queue(`DELETE FROM plants WHERE id = $1`, id)
	return pool.SendBatch(ctx, &batch).Close()
}
