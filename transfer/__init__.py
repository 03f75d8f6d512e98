"""Dense transfer: conversion to Detectron2 weights, detectors and segmenters, scores, results and the report."""
