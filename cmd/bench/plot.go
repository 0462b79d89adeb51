//go:build linux

package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Size of the plot of a distance.
const plotWidth, plotHeight = 12 * vg.Inch, 5 * vg.Inch

// plotName is the file of a distance's plot.
func (j *journey) plotName() string { return "distance-" + j.road.name() + ".svg" }

// plots draws each distance into a folder.
func (r *report) plots(folder string) error {
	for _, j := range r.journeys {
		if err := j.plot(filepath.Join(folder, j.plotName())); err != nil {
			return fmt.Errorf("plot: %w", err)
		}
	}
	return nil
}

// plot draws rate and p50 over the number of clients, side by side.
func (j *journey) plot(path string) error {
	rate, err := j.chart("deletions a second", (*trial).rate)
	if err != nil {
		return err
	}
	p50, err := j.chart("p50, ms", func(t *trial) float64 { return t.p50().Seconds() * 1000 })
	if err != nil {
		return err
	}
	rate.Title.Text = j.road.title()
	p50.Title.Text = " " // as high as the other's
	canvas := vgsvg.New(plotWidth, plotHeight)
	dc := draw.New(canvas)
	width := dc.Max.X - dc.Min.X
	rate.Draw(draw.Crop(dc, 0, -width/2, 0, 0))
	p50.Draw(draw.Crop(dc, width/2, 0, 0, 0))
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(f)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// chart draws one figure of the contenders, both axes by factors.
func (j *journey) chart(label string, figure func(*trial) float64) (*plot.Plot, error) {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "clients", label
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.Y.Tick.Marker = plot.TickerFunc(ticksByFactors)
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(2)
	p.Legend.TextStyle.Font.Size = font.Length(10)
	var clients []plot.Tick
	for i, line := range []struct {
		contender string
		color     color.Color
	}{
		{plantstore, color.RGBA{0x2c, 0x7f, 0x4f, 0xff}},
		{barePlain, color.RGBA{0xd9, 0x82, 0x1c, 0xff}},
		{pgbenchLedgered, color.RGBA{0x2b, 0x5d, 0xb3, 0xff}},
	} {
		var points plotter.XYs
		for _, t := range j.trials {
			if t.is(line.contender) {
				points = append(points, plotter.XY{X: float64(t.clients), Y: figure(t)})
				if i == 0 {
					clients = append(clients, plot.Tick{Value: float64(t.clients), Label: strconv.Itoa(t.clients)})
				}
			}
		}
		if len(points) == 0 {
			continue
		}
		curve, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		curve.Color, curve.Width = line.color, vg.Points(2)
		dots.Color, dots.Shape, dots.Radius = line.color, draw.CircleGlyph{}, vg.Points(3)
		p.Add(curve, dots)
		p.Legend.Add(line.contender, curve, dots)
	}
	p.X.Tick.Marker = plot.ConstantTicks(clients)
	p.Add(plotter.NewGrid())
	// Room above for the legend; an axis by factors needs two different ends.
	p.Y.Min, p.Y.Max = p.Y.Min/1.2, p.Y.Max*4
	p.X.Min, p.X.Max = p.X.Min/1.2, p.X.Max*1.2
	return p, nil
}

// ticksByFactors puts marks at 1, 2 and 5 of each power of ten.
func ticksByFactors(low, high float64) (ticks []plot.Tick) {
	for power := 0.001; power <= high; power *= 10 {
		for _, n := range []float64{1, 2, 5} {
			if v := n * power; v >= low && v <= high {
				ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 3, 64)})
			}
		}
	}
	return ticks
}
