// Command bare is the benchmark's yardstick: the handler that a Go developer would
// write with Echo and pgx, one DELETE on one connection for each request. It
// authenticates nobody, records nothing, and answers 204 whether there was a plant
// or not.
//
// It takes DATABASE_URL and PLANTSTORE_ADDR from its environment.
package main

import (
	"context"
	"log"
	"net/http"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"
)

func main() {
	pool, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.DELETE("/plants/:id", func(c echo.Context) error {
		id, err := strconv.ParseInt(c.Param("id"), 10, 64)
		if err != nil {
			return echo.NewHTTPError(http.StatusBadRequest, "not an id")
		}
		if _, err := pool.Exec(c.Request().Context(), `DELETE FROM plants WHERE id = $1`, id); err != nil {
			return err
		}
		return c.NoContent(http.StatusNoContent)
	})
	log.Fatal(e.Start(os.Getenv("PLANTSTORE_ADDR")))
}
