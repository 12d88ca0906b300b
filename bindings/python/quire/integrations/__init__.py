# SPDX-License-Identifier: Apache-2.0
"""Quire under engines that others wrote."""
