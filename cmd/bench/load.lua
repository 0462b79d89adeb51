-- wrk's script: deletes plant after plant, each once, and prints what came of it as JSON.
-- Arguments: token, first id, step, number of plants. The next id is id + step, modulo plants.
local id, step, plants, rest

function init(args)
	id, step, plants = tonumber(args[2]), tonumber(args[3]), tonumber(args[4])
	rest = " HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer " .. args[1] .. "\r\n\r\n"
end

function request()
	local this = id
	id = (id + step) % plants
	return "DELETE /plants/" .. this .. rest
end

function done(summary, latency)
	local e = summary.errors
	io.write(string.format('\n{"Requests": %d, "Microseconds": %d, "P50": %d, "P99": %d, "Refused": %d, "Broken": %d}\n',
		summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
		e.status, e.connect + e.read + e.write + e.timeout))
end
