package doctor

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// tokens finds tokens that are forgotten or soon a surprise. Names of tokens have
// no character that SQL or a shell would take for more.
func (e *examination) tokens(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	rows, err := tx.Query(ctx, `
		WITH valid AS (
			SELECT *, last_used_at IS NULL AND created_at < now() - make_interval(secs => $2) AS unused,
				expires_at < now() + make_interval(secs => $1) AS ends,
				left(name, 52) || '-' || to_char(now(), 'YYYYMMDD') AS next
			FROM public.api_tokens WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
		)
		SELECT CASE WHEN unused THEN format('token %s was never used since %s', name, to_char(created_at, 'YYYY-MM-DD'))
				WHEN ends THEN format('token %s expires on %s', name, to_char(expires_at, 'YYYY-MM-DD'))
				ELSE format('token %s never expires', name) END,
			CASE WHEN unused THEN format('plantstore token revoke %s', name)
				WHEN ends THEN format(E'plantstore token create %s\n# and once its client has changed over:\nplantstore token revoke %s', next, name)
				ELSE format('UPDATE public.api_tokens SET expires_at = now() + interval ''90 days'' WHERE name = %L;', name) END
		FROM valid WHERE unused OR ends OR expires_at IS NULL ORDER BY name`, e.Limits.TokenExpiry.Seconds(), e.Limits.TokenUnused.Seconds())
	if err != nil {
		return nil, err
	}
	found, err := collect(rows, Warning)
	return orFine(found, "all in use and with an end"), err
}
