package main

import "strings"

// This file has the part of Grafana's dashboard format that is used (schema version 39, Grafana 11 and later).

type object = map[string]any

// panel is a panel of the dashboard. layout sets its place.
type panel struct {
	title, kind, unit string
	about             string // description, shown by the i in the corner
	queries           []query
	alerts            []string // alerts whose sections of the runbook are linked
	width, height     int
	more              func(p object) // sets further properties
}

// query is an expression and the name of its series.
type query struct{ expr, legend string }

type row struct {
	title  string
	folded bool
	panels []panel
}

const gridWidth = 24

// layout numbers the panels and places them in rows.
func layout(rows []row) (out []object) {
	id, y := 0, 0
	for _, r := range rows {
		id++
		head := object{"id": id, "type": "row", "title": r.title, "collapsed": r.folded, "gridPos": object{"x": 0, "y": y, "w": gridWidth, "h": 1}, "panels": []object{}}
		y++
		var inside []object
		x, tallest := 0, 0
		for _, p := range r.panels {
			if x+p.width > gridWidth {
				x, y, tallest = 0, y+tallest, 0
			}
			id++
			o := p.object(id)
			o["gridPos"] = object{"x": x, "y": y, "w": p.width, "h": p.height}
			x, tallest = x+p.width, max(tallest, p.height)
			inside = append(inside, o)
		}
		y += tallest
		if r.folded {
			head["panels"] = inside
			out = append(out, head)
			continue
		}
		out = append(append(out, head), inside...)
	}
	return out
}

var source = object{"type": "prometheus", "uid": "${datasource}"}

func (p *panel) object(id int) object {
	var targets []object
	for i, q := range p.queries {
		t := object{"refId": string(rune('A' + i)), "datasource": source, "expr": q.expr, "legendFormat": q.legend}
		if p.kind != "timeseries" && p.kind != "state-timeline" {
			t["instant"] = true
			t["range"] = false
		}
		if p.kind == "table" {
			t["format"] = "table"
		}
		targets = append(targets, t)
	}
	o := object{
		"id": id, "type": p.kind, "title": p.title, "description": p.about, "datasource": source, "targets": targets,
		"fieldConfig": object{"defaults": object{"unit": p.unit}, "overrides": []object{}},
		"options":     p.options(),
	}
	if p.kind == "timeseries" {
		defaults(o)["custom"] = object{"fillOpacity": 10, "lineWidth": 1, "showPoints": "never", "spanNulls": false}
		defaults(o)["min"] = 0
	}
	var links []object
	for _, alert := range p.alerts {
		links = append(links, object{"title": "Runbook: " + alert, "targetBlank": true, "url": runbook + "#" + strings.ToLower(alert)})
	}
	if links != nil {
		o["links"] = links
	}
	if p.more != nil {
		p.more(o)
	}
	return o
}

// runbook has a section for each alert.
const runbook = "https://github.com/outboxcdc/outboxcdc/blob/main/docs/runbook.md"

// withAlerts returns the panel with links to the sections of the runbook about these alerts.
func (p panel) withAlerts(alerts ...string) panel {
	p.alerts = alerts
	return p
}

func defaults(o object) object {
	return o["fieldConfig"].(object)["defaults"].(object)
}

func (p *panel) options() object {
	switch p.kind {
	case "stat":
		return object{
			"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
			"colorMode":     "background", "graphMode": "none", "textMode": "auto", "justifyMode": "center",
		}
	case "timeseries":
		return object{
			"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true},
			"tooltip": object{"mode": "multi", "sort": "desc"},
		}
	case "state-timeline":
		return object{"mergeValues": true, "showValue": "never", "legend": object{"displayMode": "list", "placement": "bottom", "showLegend": false}}
	case "table":
		return object{"showHeader": true}
	}
	return object{}
}

// thresholds are the colors of a value: base, and another color from each bound on.
func thresholds(base string, steps ...any) func(object) {
	return func(o object) {
		list := []object{{"color": base, "value": nil}}
		for i := 0; i < len(steps); i += 2 {
			list = append(list, object{"value": steps[i], "color": steps[i+1]})
		}
		d := defaults(o)
		d["thresholds"] = object{"mode": "absolute", "steps": list}
		d["color"] = object{"mode": "thresholds"}
	}
}

// variable is a variable of the dashboard, selected at the top of the page.
func variable(name, label, expr string) object {
	return object{
		"name": name, "label": label, "type": "query", "datasource": source, "refresh": 2, "sort": 1,
		"query":      object{"query": expr, "refId": name, "qryType": 1},
		"definition": expr, "multi": true, "includeAll": true, "allValue": ".*",
		"current": object{"text": "All", "value": "$__all"},
	}
}
